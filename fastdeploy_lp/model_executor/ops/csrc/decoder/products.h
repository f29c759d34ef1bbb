// Products of tiles, compiled in separate files, side by side: they take most of the time of the compiler.
#pragma once

#include "decoder/prefetch.h"

#define FDLP_TILES_OF(f) \
    FDLP_TILE(1, f)      \
    FDLP_TILE(2, f)      \
    FDLP_TILE(3, f) FDLP_TILE(4, f) FDLP_TILE(5, f) FDLP_TILE(6, f) FDLP_TILE(7, f) FDLP_TILE(8, f) FDLP_TILE(9, f) FDLP_TILE(10, f)
#define FDLP_TILES_WITH(n, f, prefetcher) \
    template void multiply_rows<n, Format::f, prefetcher>(const Panel&, const Activations&, int, prefetcher&, Floats(*)[2]);

#define FDLP_TILE(n, f) extern FDLP_TILES_WITH(n, f, Prefetcher) extern FDLP_TILES_WITH(n, f, const PanelPrefetcher)
#define FDLP_FORMAT(f) FDLP_TILES_OF(f)
FDLP_FORMATS
#undef FDLP_FORMAT
#undef FDLP_TILE

// In one of the files, for each of its formats.
#define FDLP_TILE(n, f) FDLP_TILES_WITH(n, f, Prefetcher) FDLP_TILES_WITH(n, f, const PanelPrefetcher)
