// The name of the machine this process runs on.
#pragma once

#include <string>

namespace tessera::comm {

/// As gethostname() says, "unknown" where it does not.
std::string host_name();

}  // namespace tessera::comm
