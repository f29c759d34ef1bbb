#include "decoder/products.h"

FDLP_TILES_OF(float32) FDLP_TILES_OF(float16) FDLP_TILES_OF(bfloat16)
