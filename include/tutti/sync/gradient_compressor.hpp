// The mean of everybody's gradients, of which less than the gradients travels; what a worker leaves out of a step it
// adds to its gradients of the next.
//
//   GradientCompressor compressor(TopK{.fraction = 0.01});               // one for each worker, kept between steps
//   compressor.mean(world, gradients);                                   // GradientBuffers; the same bits on everyone
//   compressor.tally().line();                                           // "TopK:0.01 sent 1.2 MiB instead of 60 MiB
//   (2.0 %)"
//
// What remains goes by the name of its gradient, whichever buffers that comes in. docs/compression.md tells what each
// compression sends and keeps. One thread at a time uses it.
//
// A gradient that is infinite or no number comes out as such, somewhere in its piece at least, and leaves nothing of
// the kind behind. A call that fails leaves what remained as it was, and so can be made again; gradients that would
// have been compressed are then unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <tutti/base/bytes.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/sync/gradient_buffers.hpp>

namespace tutti {

// How much travelled, and how much would have: what this worker contributed, in calls that succeeded.
struct CompressionTally {
  Compression compression;
  Bytes gradients;
  Bytes sent;

  // Below zero where the indices of a TopK take more than it leaves out.
  std::int64_t saved() const {
    return static_cast<std::int64_t>(gradients.value) - static_cast<std::int64_t>(sent.value);
  }
  std::string line() const;
};

// All that the next step depends on, for checkpoints. Each worker has its own remains; factors are the same on all.
struct CompressorState {
  using Values = std::variant<std::vector<float>, std::vector<double>>;

  std::map<std::string, Values> remains;  // by the name of the gradient, as long as it is
  std::map<std::string, Values> factors;  // of PowerSgd: Q, column by column

  friend bool operator==(const CompressorState&, const CompressorState&) = default;
};

struct GradientCompressorOptions {
  AllReduceStrategy algorithm = Auto{};
  bool reproducible = false;
  std::uint64_t seed = 0;  // of PowerSgd's first Q; the same on every worker
};

class GradientCompressor {
 public:
  // Throws a UsageError for a compression that cannot be.
  explicit GradientCompressor(const Compression& compression, const GradientCompressorOptions& options = {});

  // All workers call it with equal pieces, and their gradients become the mean of what all sent. PeerError disagreement
  // on all of them where pieces differ, naming the workers; where a piece came before with another length or type, a
  // UsageError names it, and the others hear of that. Then nothing has changed.
  void mean(Communicator& world, GradientBuffers& gradients);

  // The same in two steps, for rounds that can still fail: what was left out counts once it is kept. A round brings
  // each piece once.
  void exchange(Communicator& world, GradientBuffers& gradients);
  void keep();
  void forget();
  void forget(const std::string& piece);  // of this one alone: it goes on with what remained before
  // Tells workers that are in exchange() that this one cannot take part.
  static void refuse(Communicator& world);

  const Compression& compression() const { return compression_; }
  CompressionTally tally() const { return {compression_, gradient_bytes_, sent_bytes_}; }

  const CompressorState& state() const { return state_; }
  // Goes on from there. Remains that are infinite or no number are a UsageError.
  void restore(CompressorState state);

 private:
  // Memory that is kept from one call to the next.
  class Scratch {
   public:
    template <typename T>
    std::span<T> of(std::size_t length) {
      if (bytes_.size() < length * sizeof(T)) bytes_ = std::vector<std::byte>(length * sizeof(T));
      return {reinterpret_cast<T*>(bytes_.data()), length};
    }

   private:
    std::vector<std::byte> bytes_;
  };

  // Each returns the bytes that it sent.
  template <typename T>
  std::size_t exchange_as(Communicator& world, GradientBuffers& gradients, const NoCompression&);
  template <typename T>
  std::size_t exchange_as(Communicator& world, GradientBuffers& gradients, const TopK& top_k);
  template <typename T>
  std::size_t exchange_as(Communicator& world, GradientBuffers& gradients, const Float16&);
  template <typename T>
  std::size_t exchange_as(Communicator& world, GradientBuffers& gradients, const BFloat16&);
  template <typename T>
  std::size_t exchange_as(Communicator& world, GradientBuffers& gradients, const PowerSgd& power_sgd);
  template <typename T>
  std::size_t exchange_halves(Communicator& world, GradientBuffers& gradients, DataType half);

  void all_reduce_mean(Communicator& world, Array array) const;
  void refuse_other_pieces(const GradientBuffers& gradients) const;
  // By piece: what remained from before, or zeros.
  template <typename T>
  std::vector<const std::vector<T>*> remains_of(const GradientBuffers& gradients);
  // Gradients and remains together.
  template <typename T>
  std::span<T> whole(const GradientBuffers& gradients, const std::vector<const std::vector<T>*>& remains);
  // What is left of a step is to become what remains. Where that is no finite number the gradient was none, and what
  // remained from before still does.
  template <typename T>
  void stage(const GradientBuffers& gradients, std::span<const T> left,
             const std::vector<const std::vector<T>*>& remains);
  // The factor that a piece begins with.
  template <typename T>
  void fill_factor(const std::string& name, std::span<T> q, std::size_t columns) const;

  Compression compression_;
  GradientCompressorOptions options_;
  CompressorState state_;
  CompressorState staged_;  // what keep() makes of it
  Bytes gradient_bytes_;
  Bytes sent_bytes_;
  Bytes staged_gradient_bytes_;
  Bytes staged_sent_bytes_;
  CompressorState::Values zeros_;
  Scratch whole_;
  Scratch sent_;
  Scratch received_;
};

}  // namespace tutti
