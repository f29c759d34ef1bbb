// Packs weight matrices from the rows of a checkpoint into panels.
#include <atomic>

#include "decoder/stored_rows.h"
#include "exports.h"

using packed_weights::Format;
using packed_weights::Matrix;
using stored_rows::Fault;
using stored_rows::Row;

// The shortest format that represents weights [out][in] exactly; if `quantized`, the shortest of the level formats, which may round. Reads
// only as many panels as needed to rule out the other formats. `fault` reports a row that cannot be read or holds NaN or infinity.
FDLP_EXPORT int fdlp_weight_format(const Row* rows, int in, int out, int quantized, Fault* fault) {
    // Formats still to try: float32, or levels of 8 bits, are always possible.
    const unsigned tried = quantized ? packed_weights::set_of(Format::levels4)
                                     : (1u << packed_weights::kFormats) - 1 - packed_weights::set_of(Format::float32);
    std::atomic<unsigned> left{tried};
    const auto skip = [&](int) { return left.load(std::memory_order_relaxed) == 0; };
    *fault = stored_rows::each_panel(rows, in, out, skip, [&](int, const Matrix& panel) {
        if (!quantized)
            left &= packed_weights::exact_formats(panel, 0, left.load(std::memory_order_relaxed));
        else if (!packed_weights::panel_fits_4_bits(panel, 0))
            left = 0;
    });
    const unsigned found = left | packed_weights::set_of(quantized ? Format::levels8 : Format::float32);
    // They are numbered from the longest to the shortest.
    int shortest = 0;
    for (int format = 0; format < packed_weights::kFormats; ++format)
        if (found & (1u << format)) shortest = format;
    return shortest;
}

FDLP_EXPORT int64_t fdlp_packed_bytes(int in, int out, Format format) {
    return packed_weights::panels_of(out) * packed_weights::panel_bytes(format, in);
}

// weights [out][in] → packed; `packed` is zero at first and has fdlp_packed_bytes bytes.
FDLP_EXPORT void fdlp_pack(uint8_t* packed, const Row* rows, int in, int out, Format format, Fault* fault) {
    *fault = stored_rows::each_panel(
        rows, in, out, [](int) { return false; },
        [&](int panel, const Matrix& matrix) {
            packed_weights::pack_panel(packed + panel * packed_weights::panel_bytes(format, in), format, matrix, 0);
        });
}

// Dequantizes row `row` of a packed matrix to floats [in].
FDLP_EXPORT void fdlp_unpack_row(float* to, const uint8_t* packed, Format format, int in, int row) {
    packed_weights::unpack_row(to, packed, format, in, row);
}
