// The matrix products of one decode step by the package's own kernels, and nothing else of the step.

#include <vector>

#include "decoder/prefetch.h"
#include "exports.h"

// Mirrored by `ProductStruct` in engine_native.py.
struct BenchProduct {
    Linear layer;
    Activations x;
    float* out;  // [rows][columns, rounded up to whole panels]
};

// As fdlp_choose_tiles of the package's library, for these products.
FDLP_EXPORT tiles::Unit bench_choose_tiles(tiles::Choice choice) { return tiles::unit = tiles::choose(choice); }

FDLP_EXPORT void bench_prepare(const BenchProduct* product, int rows) {
    for (int row = 0; row < rows; ++row) product->x.prepare(product->layer, row);
}

FDLP_EXPORT void bench_multiply(const BenchProduct* products, int count, int rows) {
    Team::forward([&](Member& team) {
        const tiles::Release release_at_end;
        std::vector<float> sums(static_cast<size_t>(rows) * kPanel);
        Prefetcher prefetcher({}, {}, team.thread(), team.threads());
        for (int i = 0; i < count; ++i) {
            const BenchProduct& p = products[i];
            const int64_t stride = round_up(p.layer.out, kPanel);
            const Product product{p.layer, i + 1 < count ? &products[i + 1].layer : nullptr};
            team.run(p.layer.panels(), [&](int panel) {
                multiply_panel(product, p.x, rows, panel, sums.data(), prefetcher, [&](int row, Floats low, Floats high) {
                    float* to = p.out + row * stride + panel * kPanel;
                    store(to, low);
                    store(to + kLanes, high);
                });
            });
        }
    });
}
