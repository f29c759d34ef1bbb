// Packs weight matrices from the rows of a checkpoint into panels.
#include <atomic>

#include "decoder/stored_rows.h"
#include "exports.h"

using packed_weights::Format;
using stored_rows::Fault;
using stored_rows::PanelReader;
using stored_rows::Row;

// The format of rows that are all of one type of blocks; else the shortest format that represents weights [out][in] exactly; if
// `quantized`, the shortest of the level formats, which may round. Reads only as many panels as needed to rule out the other formats.
// `fault` reports a row that cannot be read or holds NaN or infinity.
FDLP_EXPORT int fdlp_weight_format(const Row* rows, int in, int out, int quantized, Fault* fault) {
    *fault = {Fault::none, 0};
    const int of_blocks = with_block(
        stored_rows::common_element(rows, out), [](auto block) { return static_cast<int>(decltype(block)::kFormat); }, [] { return -1; });
    if (of_blocks >= 0) return of_blocks;
    // Formats still to try: the longest one is always possible.
    const Format longest = quantized ? Format::levels8 : Format::float32;
    const unsigned levels = packed_weights::kFoundLevels, all = (1u << packed_weights::kFoundFormats) - 1;
    std::atomic<unsigned> left{(quantized ? levels : all) & ~packed_weights::set_of(longest)};
    const auto skip = [&](int) { return left.load(std::memory_order_relaxed) == 0; };
    *fault = stored_rows::each_panel(rows, in, out, skip, [&](int panel, PanelReader& reader, Fault* found) {
        const packed_weights::Matrix matrix = reader.read(panel, found);
        if (found->reason != Fault::none) return;
        const auto narrowed = quantized ? packed_weights::rounded_formats : packed_weights::exact_formats;
        left &= narrowed(matrix, 0, left.load(std::memory_order_relaxed));
    });
    const unsigned found = left | packed_weights::set_of(longest);
    int shortest = 0;
    for (int format = 0; format < packed_weights::kFoundFormats; ++format)
        if (found & (1u << format)) shortest = format;
    return shortest;
}

FDLP_EXPORT int64_t fdlp_packed_bytes(int in, int out, Format format) {
    return packed_weights::panels_of(out) * packed_weights::panel_bytes(format, in);
}

// weights [out][in] → packed; `packed` is zero at first and has fdlp_packed_bytes bytes.
FDLP_EXPORT void fdlp_pack(uint8_t* packed, const Row* rows, int in, int out, Format format, Fault* fault) {
    const auto pack = [&](int panel, PanelReader& reader, Fault* found) {
        uint8_t* to = packed + panel * packed_weights::panel_bytes(format, in);
        if (packed_weights::has_header(format)) {
            reader.read_blocks(panel, found, [&](auto block, const uint8_t* row, int column) {
                gguf_blocks::pack_column<decltype(block)>(to, row, in, column);
            });
            return;
        }
        const packed_weights::Matrix matrix = reader.read(panel, found);
        if (found->reason == Fault::none) packed_weights::pack_panel(to, format, matrix, 0);
    };
    *fault = stored_rows::each_panel(rows, in, out, [](int) { return false; }, pack);
}

// Dequantizes row `row` of a packed matrix to floats [in].
FDLP_EXPORT void fdlp_unpack_row(float* to, const uint8_t* packed, Format format, int in, int row) {
    packed_weights::unpack_row(to, packed, format, in, row);
}
