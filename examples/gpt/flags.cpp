#include "examples/gpt/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gpt {
namespace {

// CLI11's own texts do not say what would be right.
[[noreturn]] void refuse(const std::string& name, const std::string& what) { throw CLI::ValidationError(name, what); }

std::string shown(double value) { return fmt::format("{:g}", value); }

}  // namespace

CLI::Option* FlagTable::add(const std::string& name, const std::function<void(const std::string&)>& read, const std::string& help) {
  return app_.add_option_function<std::string>(name, read, help)->type_name("")->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void FlagTable::whole(const std::string& name, std::int64_t& value, const std::string& help, Range<std::int64_t> range) {
  add(name, [name, &value, range](const std::string& given) {
    std::int64_t read = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), read);
    if (error == std::errc::invalid_argument || (error == std::errc{} && end != given.data() + given.size())) {
      refuse(name, fmt::format("'{}' is not a whole number; give {} to {}", given, range.least, range.most));
    }
    if (error != std::errc{} || read < range.least || read > range.most) {
      refuse(name, fmt::format("{} is out of range; give {} to {}", given, range.least, range.most));
    }
    value = read;
  }, help);
  values_.emplace_back(name.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

void FlagTable::real(const std::string& name, double& value, const std::string& help, Range<double> range) {
  add(name, [name, &value, range](const std::string& given) {
    char* end = nullptr;
    const double read = std::strtod(given.c_str(), &end);
    if (given.empty() || *end != '\0') {
      refuse(name, fmt::format("'{}' is not a number; give {} to {}", given, shown(range.least), shown(range.most)));
    }
    if (!(read >= range.least && read <= range.most)) {
      refuse(name, fmt::format("{} is out of range; give {} to {}", given, shown(range.least), shown(range.most)));
    }
    value = read;
  }, help);
  values_.emplace_back(name.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

void FlagTable::text(const std::string& name, std::string& value, const std::string& help) {
  add(name, [name, &value](const std::string& given) {
    if (given.empty()) refuse(name, "is empty; give a file or leave the flag out");
    value = given;
  }, help);
  values_.emplace_back(name.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

void FlagTable::choice(const std::string& name, std::string& value, const std::string& help, std::vector<std::string> allowed) {
  const std::string choices = fmt::format("{}", fmt::join(allowed, ", "));
  add(name, [name, &value, allowed = std::move(allowed), choices](const std::string& given) {
    if (std::find(allowed.begin(), allowed.end(), given) == allowed.end()) {
      refuse(name, fmt::format("'{}' is not known; give one of {}", given, choices));
    }
    value = given;
  }, help + " (" + choices + ")");
  values_.emplace_back(name.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

void FlagTable::list(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  app_.add_option(name, values, help)->type_name("")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  values_.emplace_back(name.substr(2), [&values] { return nlohmann::ordered_json(values); });
}

void FlagTable::on(const std::string& name, bool& value, const std::string& help) {
  app_.add_flag(name, value, help);
  values_.emplace_back(name.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

bool FlagTable::given(const std::string& name) const { return app_.count(name) > 0; }

std::string FlagTable::parse(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
    return {};
  } catch (const CLI::Success&) {
    throw;  // --help, --version: the caller prints
  } catch (const CLI::ValidationError& e) {
    return e.what();  // "--flag: what; fix"
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> rest = app_.remaining();
    return fmt::format("{} is not a flag of train_gpt; --help lists them", rest.empty() ? std::string("an argument") : rest.front());
  } catch (const CLI::ParseError& e) {
    return fmt::format("{}; --help shows how each flag is used", e.what());
  }
}

nlohmann::ordered_json FlagTable::values() const {
  nlohmann::ordered_json all;
  for (const auto& [name, value] : values_) all[name] = value();
  return all;
}

}  // namespace gpt
