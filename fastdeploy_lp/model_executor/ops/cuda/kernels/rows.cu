// The kernels of operations on rows of logits, one translation unit.
#include "compare.cuh"
#include "cuts.cuh"
#include "draws.cuh"
#include "edits.cuh"
#include "logprobs.cuh"
