#include "decoder/products.h"

FDLP_TILES_OF(levels6k) FDLP_TILES_OF(levels5k) FDLP_TILES_OF(levels4k)
