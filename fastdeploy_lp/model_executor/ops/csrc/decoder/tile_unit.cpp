#include "decoder/tile_unit.h"

#include "decoder/linear_int8.h"
#include "exports.h"

// Vector instructions of products of 8 bits.
FDLP_EXPORT const char* fdlp_vectors() { return linear_int8::kInstructions; }

// Makes the choice for all later passes of the process; returns what computes, or why nothing does.
FDLP_EXPORT tiles::Unit fdlp_choose_tiles(tiles::Choice choice) { return tiles::unit = tiles::choose(choice); }

// Increases with each pass that computes in tiles, and with no other.
FDLP_EXPORT int64_t fdlp_tile_loads() { return tiles::loads.load(std::memory_order_relaxed); }
