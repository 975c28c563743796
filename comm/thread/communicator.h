// The thread transport: ranks are threads of one process. The test bed of everything above, and the way to use Tessera without MPI.
#pragma once

#include <memory>
#include <string>

#include "comm/recorder.h"
#include "comm/thread/hub.h"
#include "comm/traffic.h"
#include "tessera/communicator.h"

namespace tessera::comm {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, Rank rank, const TransportOptions& options);
  ~ThreadCommunicator() override;

  std::string_view transport() const override { return "thread"; }
  std::string host_of(Rank rank) const override;
  std::shared_ptr<Communicator> split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                      std::chrono::milliseconds deadline) override;
  Bytes scratch_bytes(int size) const override;
  bool full_flat_addressable() const override { return size() == 1; }
  void interrupt(const std::string& cause) override;
  bool interrupted() const override;
  void resume() override;
  void leave() noexcept override;
  void abort(const std::string& cause) noexcept override;
  Traffic traffic() const override;

 private:
  void start(std::shared_ptr<Operation> operation, Stream& stream) override;

  const std::shared_ptr<Hub> hub_;
  const TransportOptions options_;
  const std::string host_;
  const std::shared_ptr<TrafficCounter> counter_;  // operations on their way share it
};

}  // namespace tessera::comm
