#include "examples/gpt/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

namespace gpt {
namespace {

// CLI11's own texts do not say what would be right.
[[noreturn]] void refuse(const std::string& name, const std::string& what) { throw CLI::ValidationError(name, what); }

std::string shown(double value) { return fmt::format("{:g}", value); }

}  // namespace

using Json = nlohmann::ordered_json;

struct FlagTable::Impl {
  Impl(const std::string& program, const std::string& description) : app(description, program) {}

  template <class T>
  void show(const std::string& name, T& value) {
    values.emplace_back(name.substr(2), [&value] { return Json(value); });
  }
  template <class T>
  void add(const std::string& name, T& value, const std::function<void(const std::string&)>& read, const std::string& help) {
    app.add_option_function<std::string>(name, read, help)->type_name("")->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    show(name, value);
  }

  CLI::App app;
  std::vector<std::pair<std::string, std::function<Json()>>> values;
};

FlagTable::FlagTable(const std::string& program, const std::string& description, const std::string& version)
    : impl_(std::make_unique<Impl>(program, description)) {
  impl_->app.set_version_flag("--version", program + " " + version);
}

FlagTable::~FlagTable() = default;

void FlagTable::whole(const std::string& name, std::int64_t& value, const std::string& help, Range<std::int64_t> range) {
  impl_->add(
      name, value,
      [name, &value, range](const std::string& given) {
        std::int64_t read = 0;
        const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), read);
        if (error == std::errc::invalid_argument || (error == std::errc{} && end != given.data() + given.size())) {
          refuse(name, fmt::format("'{}' is not a whole number; give {} to {}", given, range.least, range.most));
        }
        if (error != std::errc{} || read < range.least || read > range.most) {
          refuse(name, fmt::format("{} is out of range; give {} to {}", given, range.least, range.most));
        }
        value = read;
      },
      help);
}

void FlagTable::real(const std::string& name, double& value, const std::string& help, Range<double> range) {
  impl_->add(
      name, value,
      [name, &value, range](const std::string& given) {
        char* end = nullptr;
        const double read = std::strtod(given.c_str(), &end);
        if (given.empty() || *end != '\0') {
          refuse(name, fmt::format("'{}' is not a number; give {} to {}", given, shown(range.least), shown(range.most)));
        }
        if (!(read >= range.least && read <= range.most)) {
          refuse(name, fmt::format("{} is out of range; give {} to {}", given, shown(range.least), shown(range.most)));
        }
        value = read;
      },
      help);
}

void FlagTable::text(const std::string& name, std::string& value, const std::string& help) {
  impl_->add(
      name, value,
      [name, &value](const std::string& given) {
        if (given.empty()) refuse(name, "is empty; give a file or leave the flag out");
        value = given;
      },
      help);
}

void FlagTable::choice(const std::string& name, std::string& value, const std::string& help, std::vector<std::string> allowed) {
  const std::string choices = fmt::format("{}", fmt::join(allowed, ", "));
  impl_->add(
      name, value,
      [name, &value, allowed = std::move(allowed), choices](const std::string& given) {
        if (std::find(allowed.begin(), allowed.end(), given) == allowed.end()) {
          refuse(name, fmt::format("'{}' is not known; give one of {}", given, choices));
        }
        value = given;
      },
      help + " (" + choices + ")");
}

void FlagTable::list(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  impl_->app.add_option(name, values, help)->type_name("")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  impl_->show(name, values);
}

void FlagTable::on(const std::string& name, bool& value, const std::string& help) {
  impl_->app.add_flag(name, value, help);
  impl_->show(name, value);
}

bool FlagTable::given(const std::string& name) const { return impl_->app.count(name) > 0; }

Parsed FlagTable::parse(int argc, const char* const* argv) {
  CLI::App& app = impl_->app;
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::CallForVersion& version) { return {{}, std::string(version.what()) + "\n"}; } catch (const CLI::Success&) {
    return {{}, app.help()};
  } catch (const CLI::ValidationError& e) {
    return {e.what(), {}};  // "--flag: what; fix"
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> rest = app.remaining();
    return {
        fmt::format("{} is not a flag of {}; --help lists them", rest.empty() ? std::string("an argument") : rest.front(), app.get_name()),
        {}};
  } catch (const CLI::ParseError& e) { return {fmt::format("{}; --help shows how each flag is used", e.what()), {}}; }
}

std::string FlagTable::json() const {
  Json all;
  for (const auto& [name, value] : impl_->values) all[name] = value();
  return all.dump();
}

}  // namespace gpt
