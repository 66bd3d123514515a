#define TUTTI_UPDATE_TABLE kUpdateBaseline
#include "optimizer_loops.hpp"
