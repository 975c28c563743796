// The node transport: ranks are processes of one host, and read each other's memory. A unit's full flat is there without a copy
// (allocate_flat); a reduction reads the peers' gradients where they are.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "comm/node/context.h"
#include "tessera/communicator.h"
#include "tessera/world.h"

namespace tessera::comm::node {

class NodeCommunicator final : public Communicator {
 public:
  /// Collective: waits until all ranks have mapped the segment. `ledger` may be null: then the windows are nobody's account.
  /// `met_on` is what the ranks met on, if anything: kept, and told of a failure, so that its end does not wait for the dead.
  NodeCommunicator(Segment segment, const SegmentLayout& layout, Rank rank, const TransportOptions& options,
                   const std::shared_ptr<MemoryLedger>& ledger, std::shared_ptr<const World> met_on = nullptr);
  ~NodeCommunicator() override;

  std::string_view transport() const override { return "node"; }
  std::string host_of(Rank rank) const override;
  std::shared_ptr<Communicator> split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                      std::chrono::milliseconds deadline) override;
  Bytes scratch_bytes(int size) const override;
  bool full_flat_addressable() const override { return !refused_; }
  std::string reserve(Bytes bytes) override;
  Buffer allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) override;
  /// Memory in the segment whatever the category; private only where the segment is full.
  Buffer allocate_shared(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger);
  Flat allocate_flat(Bytes per_rank, Category category, std::shared_ptr<MemoryLedger> ledger) override;
  void interrupt(const std::string& cause) override { context_->interrupt(cause); }
  bool interrupted() const override { return context_->interrupted(); }
  void resume() override { context_->resume(); }
  void leave() noexcept override;
  void abort(const std::string& cause) noexcept override;
  Traffic traffic() const override { return context_->traffic(); }

 private:
  void start(std::shared_ptr<Operation> operation, Stream& stream) override;
  void abort_with(const Failure& failure) noexcept override;

  const std::shared_ptr<const World> met_on_;
  const std::shared_ptr<Context> context_;
  const std::string host_;
  Buffer windows_;  ///< this rank's, for its ledger
  bool refused_ = false;
};

/// The layout that ranks with equal `chunk` on one host agree on.
SegmentLayout layout_for(int ranks, Bytes chunk);

/// Collective over `parent`, whose ranks can share memory: one communicator for each colour. Throws the same on every rank.
std::shared_ptr<NodeCommunicator> assemble(Communicator& parent, int color, int key, const TransportOptions& options,
                                           const std::shared_ptr<MemoryLedger>& ledger, std::shared_ptr<const World> met_on = nullptr);

}  // namespace tessera::comm::node
