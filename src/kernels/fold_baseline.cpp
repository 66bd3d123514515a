#define TUTTI_FOLD_TABLE kFoldBaseline
#include "fold_loops.hpp"
