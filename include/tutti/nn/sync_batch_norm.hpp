// Batch normalisation over the rows of all ranks: while a scope lives, every batch norm in training mode that its
// thread computes (torch::nn::BatchNorm1d, 2d, 3d, functional or scripted) takes its mean and variance over all ranks
// of a world, as if one rank had all the rows.
//
//   run_ranks(4, [&](Communicator& world) {
//     SyncBatchNorm scope(world);
//     loss_of(net.forward(my_rows)).backward();         // the backward pass within the scope, too
//   });
//
// Ranks may bring different numbers of rows, or none. All get the same bits of mean, variance and running statistics.
// The gradient of the input is that of the whole batch; those of weight and bias are this rank's own sums, which the
// synchronisation of gradients adds up. Each batch norm is a call of the world, forward one and backward one: ranks
// make them in the same order, as in all calls of a communicator, and a rank that leaves one out is waited for.
//
// A UsageError:
// - values other than float32 and float64, or parameters of another type than the input;
// - one value for each channel over all ranks, of which there is no variance. (torch::nn::BatchNorm and its functional
//   form refuse one value for each channel of a single rank before it comes to that; torch::batch_norm does not.)
// - the backward pass of what was computed in a scope, outside of it or in that of another world;
// - a second derivative through it (create_graph).
//
// What was computed outside of a scope goes back as ever. Instance normalisation, which libtorch makes of batch
// normalisation, is left alone, as is batch normalisation in evaluation mode.
//
// Threads: a scope ends on the thread it began on, after those that began in it; the innermost counts. The first scope
// of a process puts its kernels in the place of libtorch's.
#pragma once

#include <tutti/collective/communicator.hpp>

namespace tutti {

class SyncBatchNorm {
 public:
  explicit SyncBatchNorm(Communicator& world);
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;
  ~SyncBatchNorm();

  // Whether this thread is in a scope.
  static bool is_active();

 private:
  Communicator* outer_;
};

}  // namespace tutti
