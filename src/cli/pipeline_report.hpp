// What `tutti check` tells of a ModelParallel run: who computes what, what travels, how long a step takes.
#pragma once

#include <string>

#include <tutti/train/pipeline_forecast.hpp>
#include <tutti/train/run.hpp>

namespace tutti::cli {

// A line for each stage and each pair of workers that talk; times where the forecast has them.
std::string tell_pipeline(const Run& run, const PipelineForecast& forecast);

}  // namespace tutti::cli
