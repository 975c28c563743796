#include "comm/mpi/wire.h"

#include <utility>

#include "comm/mpi/error.h"

namespace tessera::comm::mpi {

namespace {

constexpr int kSignalTag = 0;

}  // namespace

Wire::Wire(MPI_Comm communicator, Receiver receiver) : communicator_(communicator), receiver_(std::move(receiver)) {
  int* bound = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(communicator, MPI_TAG_UB, static_cast<void*>(&bound), &found), "MPI_Comm_get_attr");
  constexpr int kLeastBound = 32767;  // what the standard promises
  largest_context_ = ((found != 0 ? *bound : kLeastBound) - 1) / (kChannels * kStreams) - 1;
  listen();
}

void Wire::signal(Rank to, const Packet& packet) {
  auto copy = std::make_shared<Packet>(packet);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(copy->data(), static_cast<int>(copy->size()), MPI_BYTE, to.value, kSignalTag, communicator_, &request), "MPI_Isend");
  ++signals_;
  // A signal that could not be sent is found missing by whoever waits for its effect.
  requests_.add(request, Requests::Kind::send, this, [this, copy](const Outcome&) { --signals_; });
}

void Wire::send(Rank to, int tag, const std::byte* data, Bytes bytes, const void* group, Requests::Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Issend(data, static_cast<int>(bytes.value), MPI_BYTE, to.value, tag, communicator_, &request), "MPI_Issend");
  requests_.add(request, Requests::Kind::send, group, std::move(done));
}

void Wire::receive(Rank from, int tag, std::byte* data, Bytes bytes, const void* group, Requests::Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(data, static_cast<int>(bytes.value), MPI_BYTE, from.value, tag, communicator_, &request), "MPI_Irecv");
  requests_.add(request, Requests::Kind::receive, group, std::move(done));
}

// One receive at a time keeps signals in order.
void Wire::listen() {
  auto buffer = std::make_shared<Packet>(static_cast<std::size_t>(kMaxSignal));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(buffer->data(), kMaxSignal, MPI_BYTE, MPI_ANY_SOURCE, kSignalTag, communicator_, &request), "MPI_Irecv");
  requests_.add(request, Requests::Kind::receive, this, [this, buffer](const Outcome& outcome) {
    if (outcome.cancelled) return;
    if (!closing_) listen();
    if (outcome.error == MPI_SUCCESS) receiver_(Rank(outcome.source), buffer->data(), static_cast<std::size_t>(outcome.bytes));
  });
}

void Wire::close() {
  closing_ = true;
  requests_.cancel_receives(this);
}

}  // namespace tessera::comm::mpi
