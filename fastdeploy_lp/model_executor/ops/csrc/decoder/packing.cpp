// Packs weight matrices from the rows of a checkpoint into panels.
#include <atomic>

#include "decoder/stored_rows.h"
#include "exports.h"

using packed_weights::Format;
using packed_weights::Matrix;
using stored_rows::Fault;
using stored_rows::PanelReader;
using stored_rows::Row;

// The formats among `formats` that can hold a panel.
static unsigned narrowed(const Matrix& panel, unsigned formats, bool rounding) {
    constexpr unsigned kLevels = packed_weights::kFoundLevels;
    return rounding ? packed_weights::rounded_formats(panel, formats & kLevels) : packed_weights::exact_formats(panel, formats);
}

// A set of formats for rows [out][in], of which `fdlp_pack` finds the shortest one that holds them: that of their blocks, if all are of one
// type; else those that can hold the first panel; if `quantized`, of the formats of levels alone, which may round. `fault` reports a row
// that cannot be read or holds NaN or infinity.
FDLP_EXPORT unsigned fdlp_formats(const Row* rows, int in, int out, int quantized, Fault* fault) {
    *fault = {Fault::none, 0};
    const unsigned of_blocks = with_block(
        stored_rows::common_element(rows, out), [](auto block) { return packed_weights::set_of(decltype(block)::kFormat); },
        [] { return 0u; });
    if (of_blocks != 0) return of_blocks;
    PanelReader reader(rows, in, out);
    const Matrix first = reader.read(0, fault);
    return fault->reason == Fault::none ? narrowed(first, (1u << packed_weights::kFoundFormats) - 1, quantized) : 0;
}

FDLP_EXPORT int64_t fdlp_packed_bytes(int in, int out, Format format) {
    return packed_weights::panels_of(out) * packed_weights::panel_bytes(format, in);
}

// weights [out][in] → packed, which is zero at first and has fdlp_packed_bytes bytes. Returns `formats` without those that do not hold the
// weights, exactly unless `rounding`: if `format` is still among them, all is packed.
FDLP_EXPORT unsigned fdlp_pack(uint8_t* packed, const Row* rows, int in, int out, Format format, unsigned formats, int rounding,
                               Fault* fault) {
    std::atomic<unsigned> left{formats};
    const auto skip = [&](int) { return !(left.load(std::memory_order_relaxed) & packed_weights::set_of(format)); };
    const auto pack = [&](int panel, PanelReader& reader, Fault* found) {
        uint8_t* to = packed + panel * packed_weights::panel_bytes(format, in);
        if (packed_weights::has_header(format)) {
            reader.read_blocks(panel, found, [&](auto block, const uint8_t* row, int column) {
                gguf_blocks::pack_column<decltype(block)>(to, row, in, column);
            });
            return;
        }
        const Matrix matrix = reader.read(panel, found);
        if (found->reason == Fault::none && !packed_weights::pack_panel(to, format, matrix, rounding))
            left &= narrowed(matrix, formats & ~packed_weights::set_of(format), rounding);
    };
    *fault = stored_rows::each_panel(rows, in, out, skip, pack);
    return left;
}

// Dequantizes row `row` of a packed matrix to floats [in].
FDLP_EXPORT void fdlp_unpack_row(float* to, const uint8_t* packed, Format format, int in, int row) {
    packed_weights::unpack_row(to, packed, format, in, row);
}
