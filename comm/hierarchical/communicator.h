// The hierarchical transport: several ranks on several hosts. Between hosts each byte travels once per host, not once per rank.
//
// Three communicators share the work:
//   whole   all ranks, over mpi: who has come to what, who agrees, interrupts, deadlines, control traffic. Every operation passes through
//   it;
//           those of the gather and reduce channels are only announced there, their data goes through
//   local   the ranks of one host, over node, and
//   cross   the ranks with the same place on each host, over mpi.
// all_gather: cross gathers each rank's shard into a window in the host's segment, local spreads the windows. reduce_scatter:
// local adds up the host's contributions, cross the hosts' sums. Both in pieces, the next one on the wire while one is spread or added.
//
// What all ranks have begun when somebody interrupts ends alike on all, because local and cross are never interrupted: an operation that
// was announced completely is moved completely.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/hierarchical/places.h"
#include "comm/node/communicator.h"
#include "comm/recorder.h"
#include "core/mutex.h"
#include "tessera/communicator.h"

namespace tessera::comm::hierarchical {

class HierarchicalCommunicator final : public Communicator {
 public:
  /// Collective over `whole`, whose ranks lie as `places` says. `ledger` may be null.
  HierarchicalCommunicator(std::shared_ptr<Communicator> whole, const Places& places, const TransportOptions& options,
                           std::shared_ptr<MemoryLedger> ledger);
  ~HierarchicalCommunicator() override;

  std::string_view transport() const override { return "hierarchical"; }
  std::string host_of(Rank rank) const override { return whole_->host_of(rank); }
  std::shared_ptr<Communicator> split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                      std::chrono::milliseconds deadline) override;
  Bytes scratch_bytes(int size) const override;
  bool full_flat_addressable() const override { return size() == 1; }
  std::string reserve(Bytes bytes) override;
  Buffer allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) override;
  void name_units(std::vector<std::string> names) override;
  void set_deadline(std::chrono::milliseconds deadline) override;
  void interrupt(const std::string& cause) override { whole_->interrupt(cause); }
  bool interrupted() const override { return whole_->interrupted(); }
  void resume() override;
  void leave() noexcept override;
  void abort(const std::string& cause) noexcept override;
  Traffic traffic() const override;

 private:
  class Mover;  // the data's way; operations on their way share it
  void start(std::shared_ptr<Operation> operation, Stream& stream) override;

  const std::shared_ptr<Communicator> whole_;
  const Places places_;
  const TransportOptions options_;
  std::shared_ptr<Mover> mover_;
  Traffic before_{};  ///< what it took to make this
};

}  // namespace tessera::comm::hierarchical
