// How the workers of a training run bring their gradients together. A training loop takes any of these:
//
//   void train(GradientSync& sync) {
//     for (const Batch& batch : batches) {
//       std::vector<float> gradients = backward(batch);
//       sync.sync_gradients(gradients);      // now the mean over all workers
//       step(gradients);
//     }
//   }
//
// Each worker has one of its own, and one thread at a time uses it.
#pragma once

#include <tutti/base/array.hpp>
#include <tutti/sync/gradient_buffers.hpp>

namespace tutti {

class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // One round: the gradients become their mean over all workers. All workers take part, with equally many.
  virtual void sync_gradients(Array gradients) = 0;
  // The same for gradients that have names.
  virtual void sync_buffers(GradientBuffers& gradients) { sync_gradients(gradients.all()); }

  // A round with numbers that must arrive as they are, and on all workers, however gradients travel and whoever gets
  // their mean.
  virtual void sync_exactly(Array numbers) { sync_gradients(numbers); }

  virtual bool is_distributed() const { return false; }
  virtual int num_workers() const { return 1; }
};

// A worker alone: gradients stay as they are.
class LocalGradientSync final : public GradientSync {
 public:
  void sync_gradients(Array) override {}
};

}  // namespace tutti
