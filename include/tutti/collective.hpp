// Everything a program needs to run ranks and let them talk.
#pragma once

#include <tutti/collective/auto.hpp>          // IWYU pragma: export
#include <tutti/collective/collectives.hpp>   // IWYU pragma: export
#include <tutti/collective/communicator.hpp>  // IWYU pragma: export
#include <tutti/collective/pending.hpp>       // IWYU pragma: export
#include <tutti/collective/run_ranks.hpp>     // IWYU pragma: export
