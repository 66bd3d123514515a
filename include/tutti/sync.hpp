// Gradient synchronisation: workers, rounds, and the two ends of a data-parallel step.
#pragma once

#include <tutti/sync/collective_gradient_sync.hpp>
#include <tutti/sync/data_parallel_trainer.hpp>
#include <tutti/sync/gradient_buffers.hpp>
#include <tutti/sync/gradient_compressor.hpp>
#include <tutti/sync/gradient_sync.hpp>
#include <tutti/sync/sync_strategy.hpp>
#include <tutti/sync/threaded_gradient_sync.hpp>
