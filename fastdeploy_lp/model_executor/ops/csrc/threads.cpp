#include <omp.h>

#include "exports.h"

// How many threads a parallel operator runs on.
FDLP_EXPORT int fdlp_num_threads() { return omp_get_max_threads(); }
