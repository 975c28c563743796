#include "examples/gpt/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "examples/gpt/agreement.h"

namespace gpt {
namespace {

constexpr int kCaller = 0;                // row 0; channels follow
constexpr std::size_t kMost = 1'000'000;  // events of a rank; a longer run keeps its beginning

}  // namespace

Trace::Trace(const tessera::ModelSpec& spec) {
  for (const auto& unit : spec.units()) units_.push_back(unit.name);
}

std::string Trace::name_of(tessera::UnitId unit) const {
  return unit == tessera::kNoUnit ? std::string() : " " + units_.at(static_cast<std::size_t>(unit.value));
}

void Trace::add(std::string name, int row, std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMost) events_.push_back({std::move(name), row, begin, end});
}

void Trace::operation(const tessera::OperationRecord& record) {
  add(std::string(tessera::name_of(record.verb)) + name_of(record.label.unit), 1 + static_cast<int>(record.label.channel), record.started,
      record.finished);
}

void Trace::span(std::string_view what, tessera::UnitId unit, std::chrono::steady_clock::time_point begin,
                 std::chrono::steady_clock::time_point end) {
  add(std::string(what) + name_of(unit), kCaller, begin, end);
}

void Trace::write(tessera::World& world, const std::string& path) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    const int rank = world.rank().value;
    text += fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})", rank, rank);
    const char* rows[] = {"caller", "gather", "reduce", "control"};
    for (int row = 0; row < 4; ++row) {
      text += fmt::format(
          ",\n"
          R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
          rank, row, rows[row]);
    }
    for (const Event& e : events_) {
      const auto micros = [](auto t) { return std::chrono::duration<double, std::micro>(t).count(); };
      text += fmt::format(
          ",\n"
          R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
          e.name, rank, e.row, micros(e.begin.time_since_epoch()), micros(e.end - e.begin));
    }
  }
  // Equal lengths are what an all_gather takes: JSON does not mind spaces.
  std::size_t longest = 0;
  for (const std::size_t size : from_all_ranks(world, text.size())) longest = std::max(longest, size);
  text.resize(longest, ' ');
  std::string all(longest * static_cast<std::size_t>(world.size()), ' ');
  tessera::Stream stream("trace");
  world.communicator()
      .all_gather({text.data()}, {all.data()}, tessera::Elements(static_cast<std::int64_t>(longest)), tessera::DType::u8, tessera::Label{},
                  stream)
      .wait_host();
  if (world.rank() != tessera::Rank(0)) return;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << "{\"traceEvents\":[\n";
  for (int r = 0; r < world.size(); ++r) {
    file << (r == 0 ? "" : ",\n");
    file.write(all.data() + static_cast<std::ptrdiff_t>(longest) * r, static_cast<std::streamsize>(longest));
  }
  file << "\n]}\n";
  file.close();
  if (!file) throw std::runtime_error(fmt::format("--trace {}: writing failed", path));
}

}  // namespace gpt
