// Rows of a weight matrix as a checkpoint stores them, read panel by panel: no copy of the whole matrix exists, and nothing is mapped.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "decoder/gguf_blocks.h"

namespace stored_rows {

// Mirrored by `ELEMENT_TYPES` in packed_weight.py.
enum class Element : int32_t { float32, float16, bfloat16, q4_k, q5_k, q6_k };

// The block of a type of blocks: calls use(block), or other() for a type of numbers.
template <class Use, class Other>
inline auto with_block(Element element, const Use& use, const Other& other) {
    switch (element) {
        case Element::q4_k: return use(gguf_blocks::Q4K{});
        case Element::q5_k: return use(gguf_blocks::Q5K{});
        case Element::q6_k: return use(gguf_blocks::Q6K{});
        default: return other();
    }
}

// One row of a matrix. file: a descriptor, `at` is the row's first byte; kMemory: `at` is an address; kZeros: the row is zero.
// Mirrored by `ROW` in packed_weight.py.
struct Row {
    int64_t at;
    int32_t file;
    Element element;
};
constexpr int32_t kMemory = -1, kZeros = -2;

// The first row that could not be packed and the reason. Mirrored by `FaultStruct` in packed_weight.py.
struct Fault {
    enum Reason : int32_t { none, unreadable, not_finite };
    int32_t reason, row;
};

inline int64_t row_bytes(const Row& row, int in) {
    return with_block(
        row.element, [=](auto block) { return static_cast<int64_t>(in) / gguf_blocks::kBlock * static_cast<int64_t>(sizeof block); },
        [&] { return static_cast<int64_t>(in) * (row.element == Element::float32 ? 4 : 2); });
}

// The element type of all rows but those of zeros, if there is one; else float32, which all of them are read as.
inline Element common_element(const Row* rows, int count) {
    const Row* first = nullptr;
    for (const Row* row = rows; row < rows + count; ++row) {
        if (row->file == kZeros) continue;
        if (first != nullptr && first->element != row->element) return Element::float32;
        first = row;
    }
    return first == nullptr ? Element::float32 : first->element;
}

inline bool read_all(int file, void* to, int64_t size, int64_t at) {
    for (char* next = static_cast<char*>(to); size > 0;) {
        const ssize_t got = pread(file, next, size, at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        next += got, at += got, size -= got;
    }
    return true;
}

inline bool all_finite(const float* values, int n) {
    constexpr uint32_t kExponent = 0x7f800000u;
    uint32_t bad = 0;
    for (int i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        bad |= (bits & kExponent) == kExponent;
    }
    return bad == 0;
}

// Reads the rows of one panel after another; one for each thread.
class PanelReader {
   public:
    PanelReader(const Row* rows, int in, int out)
        : rows_(rows), in_(in), out_(out), floats_(static_cast<size_t>(packed_weights::kPanel) * in), bytes_(4 * floats_.size()) {}

    // The panel as a separate matrix, valid until the next call. Rows of memory are taken to be finite.
    packed_weights::Matrix read(int panel, Fault* fault) {
        const int first = panel * packed_weights::kPanel, count = rows_of(panel);
        for (int i = 0; i < count && fault->reason == Fault::none;) {
            const int run = consecutive(rows_ + first + i, count - i);
            read_run(floats_.data() + static_cast<int64_t>(i) * in_, first + i, run, fault);
            i += run;
        }
        return {floats_.data(), in_, count};
    }

    // Calls use(block, row's bytes, column in the panel) for the panel's rows, all of blocks or of zeros.
    template <class Use>
    void read_blocks(int panel, Fault* fault, const Use& use) {
        const int first = panel * packed_weights::kPanel, count = rows_of(panel);
        for (int i = 0; i < count && fault->reason == Fault::none;) {
            const int run = consecutive(rows_ + first + i, count - i);
            const Row& row = rows_[first + i];
            const uint8_t* stored = row.file == kZeros ? nullptr : read_stored(first + i, run, fault);
            for (int next = i; next < i + run && stored != nullptr && fault->reason == Fault::none; ++next, stored += row_bytes(row, in_))
                with_block(
                    row.element,
                    [&](auto block) {
                        if (gguf_blocks::all_finite<decltype(block)>(stored, in_))
                            use(block, stored, next);
                        else
                            *fault = {Fault::not_finite, first + next};
                    },
                    [] {});
            i += run;
        }
    }

   private:
    int rows_of(int panel) const {
        const int left = out_ - panel * packed_weights::kPanel;
        return left < packed_weights::kPanel ? left : packed_weights::kPanel;
    }

    // The bytes of rows that are contiguous in a file or in memory, valid until the next call.
    const uint8_t* read_stored(int first, int count, Fault* fault) {
        const Row& row = rows_[first];
        const int64_t size = count * row_bytes(row, in_);
        if (row.file == kMemory) return reinterpret_cast<const uint8_t*>(row.at);
        if (!read_all(row.file, bytes_.data(), size, row.at)) *fault = {Fault::unreadable, first};
        return bytes_.data();
    }

    // Number of the next rows that are contiguous in one file or in memory.
    int consecutive(const Row* row, int count) const {
        int run = 1;
        while (run < count && row[run].file == row->file && row[run].element == row->element &&
               (row->file == kZeros || row[run].at == row->at + run * row_bytes(*row, in_)))
            ++run;
        return run;
    }

    void read_run(float* to, int first, int count, Fault* fault) {
        const Row& row = rows_[first];
        const int64_t numbers = static_cast<int64_t>(count) * in_;
        if (row.file == kZeros) {
            std::memset(to, 0, numbers * sizeof(float));
            return;
        }
        if (row.element == Element::float32 && row.file != kMemory) {
            if (!read_all(row.file, to, numbers * static_cast<int64_t>(sizeof(float)), row.at)) *fault = {Fault::unreadable, first};
        } else {
            const uint8_t* stored = read_stored(first, count, fault);
            with_block(
                row.element,
                // Rows are whole blocks, so that several of them are like a long one.
                [&](auto block) { gguf_blocks::expand<decltype(block)>(to, stored, static_cast<int>(numbers)); },
                [&] { widen(to, stored, numbers, row.element); });
        }
        if (row.file == kMemory) return;
        for (int i = 0; i < count && fault->reason == Fault::none; ++i)
            if (!all_finite(to + static_cast<int64_t>(i) * in_, in_)) *fault = {Fault::not_finite, first + i};
    }

    static void widen(float* to, const uint8_t* stored, int64_t n, Element element) {
        if (element == Element::float32) {
            std::memcpy(to, stored, n * sizeof(float));
            return;
        }
        const uint16_t* from = reinterpret_cast<const uint16_t*>(stored);
        int64_t i = 0;
        for (; i + kLanes <= n; i += kLanes) store(to + i, element == Element::bfloat16 ? load_bfloat16(from + i) : load(from + i));
        for (; i < n; ++i) to[i] = element == Element::bfloat16 ? bfloat16_to_float(from[i]) : half_to_float(from[i]);
    }

    const Row* rows_;
    int in_, out_;
    std::vector<float> floats_;
    std::vector<uint8_t> bytes_;
};

// Calls use(panel, reader, fault) for all panels on all threads, unless skip(panel); returns a fault if there is one.
template <class Skip, class Use>
inline Fault each_panel(const Row* rows, int in, int out, const Skip& skip, const Use& use) {
    Fault found{Fault::none, 0};
    const int panels = packed_weights::panels_of(out);
#pragma omp parallel
    {
        PanelReader reader(rows, in, out);
        Fault fault{Fault::none, 0};
#pragma omp for
        for (int panel = 0; panel < panels; ++panel) {
            if (fault.reason != Fault::none || skip(panel)) continue;
            use(panel, reader, &fault);
        }
#pragma omp critical
        if (fault.reason != Fault::none && (found.reason == Fault::none || fault.row < found.row)) found = fault;
    }
    return found;
}

}  // namespace stored_rows
