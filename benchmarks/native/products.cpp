// The matrix products of one decode step by the package's own kernels, and nothing else of the step.

#include "exports.h"
#include "linear.h"

// Mirrored by `ProductStruct` in engine_native.py.
struct Product {
    Linear layer;
    Activations x;
    float* out;  // [rows][columns, rounded up to whole panels]
};

FDLP_EXPORT void bench_prepare(const Product* product, int rows) {
    for (int row = 0; row < rows; ++row) product->x.prepare(product->layer, row);
}

FDLP_EXPORT void bench_multiply(const Product* products, int count, int rows) {
    Team::forward([&](Member& team) {
        for (int i = 0; i < count; ++i) {
            const Product& p = products[i];
            const int64_t stride = round_up(p.layer.out, kPanel);
            team.run(p.layer.panels(), [&](int panel) {
                multiply_panel(p.layer, p.x, rows, panel, [&](int row, Floats low, Floats high) {
                    float* to = p.out + row * stride + panel * kPanel;
                    store(to, low);
                    store(to + kLanes, high);
                });
            });
        }
    });
}
