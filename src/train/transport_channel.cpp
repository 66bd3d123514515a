#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <span>

#include <fmt/format.h>

#include "stage_channel.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostDimensions = 16;

// What goes ahead of a tensor, as a message of its own.
struct TensorHead {
  std::int64_t is_defined = 0;
  std::int64_t type = 0;  // a torch::ScalarType
  std::int64_t dimensions = 0;
  std::array<std::int64_t, kMostDimensions> sizes = {};
  // As it lies there it lies here: how a matrix lies can be seen in the last bits of a product.
  std::array<std::int64_t, kMostDimensions> strides = {};
};

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Whether elements are one and the same in memory, as far as that can be seen.
bool is_overlapping(const torch::Tensor& tensor) {
  std::int64_t span = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0) return true;
    span += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return tensor.numel() > 0 && span < tensor.numel();
}

class TransportChannel final : public StageChannel {
 public:
  explicit TransportChannel(Transport& transport) : transport_(transport) {}

  // Nobody may read the memory of tensors that go with this.
  ~TransportChannel() override {
    for (const Sent& one : sent_) {
      if (!is_given_up_) transport_.cancel_send(one.ticket);
    }
  }

  void send(int to, std::uint64_t tag, const torch::Tensor& tensor) override {
    refuse_if_given_up();
    TensorHead head;
    Sent one{.to = to, .tag = tag};
    if (tensor.defined()) {
      if (tensor.dim() > static_cast<std::int64_t>(kMostDimensions))
        throw UsageError(
            fmt::format("a tensor of {} dimensions cannot be sent, {} are the most", tensor.dim(), kMostDimensions));
      one.tensor = tensor.contiguous();
      head.is_defined = 1;
      head.type = static_cast<std::int64_t>(tensor.scalar_type());
      head.dimensions = tensor.dim();
      std::ranges::copy(tensor.sizes(), head.sizes.begin());
      // Where rows are one and the same in memory, there they are not.
      const bool is_repeated = is_overlapping(tensor);
      std::ranges::copy((is_repeated ? one.tensor : tensor).strides(), head.strides.begin());
    }
    static_assert(sizeof(TensorHead) <= kEagerBytes);  // copied, so that nobody waits for it
    const std::span<const std::byte> its_bytes = std::as_bytes(std::span(&head, 1));
    transport_.finish_send(transport_.start_send(Rank{to}, Tag{tag}, its_bytes), Deadline::after(kDefaultDeadline));
    if (!tensor.defined()) return;
    one.ticket = transport_.start_send(Rank{to}, Tag{tag}, bytes_of(one.tensor));
    sent_.push_back(std::move(one));
  }

  torch::Tensor receive(const Awaited& what, Deadline deadline) override {
    refuse_if_given_up();
    TensorHead head;
    const Rank from{what.from};
    const Tag tag{what.tag};
    transport_.receive(from, tag, deadline).copy_to(std::as_writable_bytes(std::span(&head, 1)));
    if (head.is_defined == 0) return {};
    const auto dimensions = static_cast<std::size_t>(head.dimensions);
    const at::IntArrayRef sizes(head.sizes.data(), dimensions);
    const at::IntArrayRef strides(head.strides.data(), dimensions);
    const torch::TensorOptions type(static_cast<torch::ScalarType>(head.type));
    torch::Tensor packed = torch::empty(sizes, type);
    if (packed.nbytes() > kEagerBytes) transport_.expect(from, tag);
    transport_.receive(from, tag, deadline).copy_to({static_cast<std::byte*>(packed.data_ptr()), packed.nbytes()});
    return packed.strides() == strides ? packed : torch::empty_strided(sizes, strides, type).copy_(packed);
  }

  // Of other processes it is known whom they wait for, and not what.
  Wait last_in_line(const Awaited& what) const override {
    Wait last{transport_.rank().value, what};
    for (int i = 0; i < transport_.size(); ++i) {  // they may wait for each other
      const int next = transport_.held_up_by(Rank{last.what.from}).value;
      if (next == last.what.from) break;
      last = {last.what.from, {.from = next}};
    }
    return last;
  }

  void release(int to, std::uint64_t tag, Deadline deadline) override {
    refuse_if_given_up();
    const auto found = std::ranges::find_if(sent_, [&](const Sent& one) { return one.to == to && one.tag == tag; });
    if (found == sent_.end()) return;
    const Sent one = std::move(*found);
    sent_.erase(found);
    transport_.finish_send(one.ticket, deadline);
  }

  void finish(Deadline deadline) override {
    refuse_if_given_up();
    while (!sent_.empty()) {
      const Sent one = std::move(sent_.front());
      sent_.pop_front();
      transport_.finish_send(one.ticket, deadline);
    }
  }

  void abort(const Failure& failure) noexcept override {
    if (!is_given_up_) transport_.abort(failure);
  }
  void give_up() noexcept override { is_given_up_ = true; }

 private:
  struct Sent {
    int to = 0;
    std::uint64_t tag = 0;
    SendTicket ticket = {};
    torch::Tensor tensor = {};
  };

  void refuse_if_given_up() const {
    if (is_given_up_) throw Error("the others have ended");
  }

  Transport& transport_;
  std::atomic<bool> is_given_up_ = false;
  std::deque<Sent> sent_;  // whose memory is still read
};

}  // namespace

std::unique_ptr<StageChannel> make_transport_channel(Transport& transport) {
  return std::make_unique<TransportChannel>(transport);
}

}  // namespace tutti::detail
