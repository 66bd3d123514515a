// Carries out one rank's plan over a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <tutti/base/array.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/collective/plan.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti::detail {

// Memory that only grows, with unspecified content.
class Buffer {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

// Messages that were started. Whatever happens, the memory they lie in is nobody else's when this is gone.
class Outbox {
 public:
  explicit Outbox(std::vector<SendTicket>& tickets) : tickets_(tickets) { tickets_.clear(); }
  ~Outbox() { cancel(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void send(Transport& transport, Rank to, Tag tag, std::span<const std::byte> payload);
  void settle(Deadline deadline);

 private:
  void cancel() noexcept;

  Transport* transport_ = nullptr;
  std::vector<SendTicket>& tickets_;
};

// The tag of a call's messages in one step.
Tag tag_of(std::uint64_t sequence, int step);

struct Execution {
  const Plan& plan;
  ConstArray source;
  Array destination;
  DataType type;
  ReduceOp op;
  std::uint64_t sequence;
  Deadline deadline;
  const std::function<void(int step)>& before_step;  // may be empty
};

class Executor {
 public:
  void execute(Transport& transport, const Execution& execution);

 private:
  Buffer scratch_;
  std::vector<SendTicket> tickets_;
  std::vector<const void*> sources_;
};

}  // namespace tutti::detail
