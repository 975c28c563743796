#include "comm/mpi/requests.h"

#include <algorithm>
#include <utility>

#include "comm/mpi/error.h"

namespace tessera::comm::mpi {

void Requests::add(MPI_Request request, Kind kind, const void* group, Done done) {
  requests_.push_back(request);
  entries_.push_back({kind, group, std::move(done)});
}

bool Requests::test() {
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;

  std::vector<std::pair<Done, Outcome>> over;
  over.reserve(static_cast<std::size_t>(count));
  indices_.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    Entry& entry = entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    Outcome outcome;
    if (code == MPI_ERR_IN_STATUS) outcome.error = status.MPI_ERROR;
    if (entry.kind == Kind::receive && outcome.error == MPI_SUCCESS) {
      int flag = 0;
      MPI_Test_cancelled(&status, &flag);
      outcome.cancelled = flag != 0;
      outcome.source = status.MPI_SOURCE;
      if (!outcome.cancelled) MPI_Get_count(&status, MPI_BYTE, &outcome.bytes);
    }
    over.emplace_back(std::move(entry.done), outcome);
  }
  // From the back, so that the indices still to come stay valid.
  std::vector<int> gone = indices_;
  std::sort(gone.rbegin(), gone.rend());
  for (const int index : gone) {
    const auto i = static_cast<std::size_t>(index);
    requests_[i] = requests_.back();
    if (&entries_[i] != &entries_.back()) entries_[i] = std::move(entries_.back());
    requests_.pop_back();
    entries_.pop_back();
  }
  for (auto& [done, outcome] : over) done(outcome);
  return true;
}

void Requests::cancel_receives(const void* group) {
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (entries_[i].kind == Kind::receive && entries_[i].group == group) MPI_Cancel(&requests_[i]);
}

void Requests::abandon() {
  if (!requests_.empty()) new std::vector<Entry>(std::move(entries_));
  requests_.clear();
  entries_.clear();
}

}  // namespace tessera::comm::mpi
