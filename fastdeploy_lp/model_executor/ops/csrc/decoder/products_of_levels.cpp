#include "decoder/products.h"

FDLP_TILES_OF(levels8) FDLP_TILES_OF(levels5) FDLP_TILES_OF(levels4)
