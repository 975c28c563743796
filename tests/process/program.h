// Runs a program to its end and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace tessera::testing {

struct Outcome {
  int code = -1;  ///< exit code; 128 + signal where one ended it
  std::string out;
  std::string err;
};

/// `command[0]` is a path or a name on PATH. The program is killed with its whole process group after `seconds`: then code is 137.
Outcome run_program(const std::vector<std::string>& command, int seconds = 60);

/// The same on `ranks` processes under mpirun. Only where MPI was built.
Outcome run_under_mpi(int ranks, const std::vector<std::string>& command, int seconds = 60);

std::vector<std::string> lines_of(const std::string& text);
std::string read_file(const std::string& path);  ///< empty if it cannot be read
void write_file(const std::string& path, const std::string& bytes);

/// A folder of its own for the calling test program; gone when it ends.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tessera::testing
