// The MPI transport: ranks are processes anywhere. Queues operations on streams and hands them to the communication thread.
#pragma once

#include <memory>
#include <string>

#include "comm/mpi/courier.h"
#include "tessera/communicator.h"

namespace tessera::comm::mpi {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Courier> courier, std::shared_ptr<Context> context);
  ~MpiCommunicator() override;

  /// The communicator of all ranks of the courier's world.
  static std::shared_ptr<MpiCommunicator> of_world(std::shared_ptr<Courier> courier);

  std::string_view transport() const override { return "mpi"; }
  std::string host_of(Rank rank) const override;
  std::shared_ptr<Communicator> split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                      std::chrono::milliseconds deadline) override;
  Bytes scratch_bytes(int size) const override;
  bool full_flat_addressable() const override { return size() == 1; }
  void interrupt(const std::string& cause) override;
  bool interrupted() const override { return context_->interrupted(); }
  void resume() override;
  void leave() noexcept override;
  void abort(const std::string& cause) noexcept override;
  Traffic traffic() const override { return context_->traffic(); }

 private:
  void start(std::shared_ptr<Operation> operation, Stream& stream) override;
  void failed_elsewhere() noexcept override;
  void abort_with(const Failure& failure) noexcept override;

  const std::shared_ptr<Courier> courier_;
  const std::shared_ptr<Context> context_;
};

}  // namespace tessera::comm::mpi
