#define TUTTI_INSPECT_TABLE kInspectBaseline
#include "inspect_loops.hpp"
