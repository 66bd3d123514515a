// How tensors get from worker to worker: without a copy between threads, over a transport between processes.
//
//   channel.send(2, tag, activations);                           // never waits for the other
//   torch::Tensor gradient = channel.receive({.from = 2, .tag = tag, .node = node}, deadline);  // may be undefined
//   channel.finish(deadline);                                    // all that was sent is the sender's again
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti::detail {

// What a worker waits for.
struct Awaited {
  int from = 0;
  std::uint64_t tag = 0;
  std::optional<std::size_t> node = {};  // that computes it; for messages to people
};

// And who does.
struct Wait {
  int by = 0;
  Awaited what = {};
};

// A worker's end of it. Tensors of one sender and tag arrive in the order they were sent. Threads: one at a time.
class StageChannel {
 public:
  virtual ~StageChannel() = default;

  // What is sent must not be written to until finish().
  virtual void send(int to, std::uint64_t tag, const torch::Tensor& tensor) = 0;
  // PeerError lost, late or cancelled.
  virtual torch::Tensor receive(const Awaited& what, Deadline deadline) = 0;
  // Where whoever is waited for waits himself, and so on: what is known of the last wait of them.
  virtual Wait last_in_line(const Awaited& what) const = 0;
  // What was sent there has been taken.
  virtual void release(int to, std::uint64_t tag, Deadline deadline) = 0;
  virtual void finish(Deadline deadline) = 0;
  // Ends the waits of all workers.
  virtual void abort(const Failure& failure) noexcept = 0;
  // Nothing of it may be used any more, not even what it stands on.
  virtual void give_up() noexcept = 0;
};

// Between threads of one process; by worker.
std::vector<std::unique_ptr<StageChannel>> make_thread_channels(int workers);

// Over messages of a transport, which must outlive it. Its ranks are the workers.
std::unique_ptr<StageChannel> make_transport_channel(Transport& transport);

}  // namespace tutti::detail
