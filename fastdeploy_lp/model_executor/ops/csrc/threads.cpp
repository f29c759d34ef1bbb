#include <omp.h>

#include "exports.h"

// Number of threads of a parallel operator.
FDLP_EXPORT int fdlp_num_threads() { return omp_get_max_threads(); }
