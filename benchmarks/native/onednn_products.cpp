// The matrix products of one decode step by oneDNN: float32, or 8-bit activations times 8-bit weights without groups and scales.

#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "dnnl.hpp"
#include "exports.h"

using dnnl::memory;

// Mirrored by `OneDnnStruct` in engine_native.py.
struct Given {
    int32_t in, out;
    const void* weights;  // [out][in], float32 or int8; products of one shape have the same
    void* x;              // [rows][in], of the same type
    float* to;            // [rows][out]
};

namespace {

struct Products {
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    std::vector<dnnl::matmul> primitives;
    std::vector<std::unordered_map<int, memory>> arguments;
};

dnnl::matmul::primitive_desc describe(const Products& all, const Given& given, int rows, memory::data_type type) {
    return {all.engine, memory::desc({rows, given.in}, type, memory::format_tag::ab),
            memory::desc({given.in, given.out}, type, memory::format_tag::any),
            memory::desc({rows, given.out}, memory::data_type::f32, memory::format_tag::ab)};
}

std::unique_ptr<Products> make(const Given* given, int count, int rows, bool int8) {
    const auto type = int8 ? memory::data_type::s8 : memory::data_type::f32;
    auto all = std::make_unique<Products>();
    // One of each shape is laid out as the primitive asks; the others are copies, in memory of their own as in a model.
    std::map<std::pair<int, int>, std::pair<dnnl::matmul::primitive_desc, memory>> shapes;
    for (int i = 0; i < count; ++i) {
        const Given& g = given[i];
        auto found = shapes.find({g.in, g.out});
        if (found == shapes.end()) {
            const auto described = describe(*all, g, rows, type);
            memory plain({{g.in, g.out}, type, memory::format_tag::ba}, all->engine, const_cast<void*>(g.weights));
            memory packed(described.weights_desc(), all->engine);
            dnnl::reorder(plain, packed).execute(all->stream, plain, packed);
            all->stream.wait();
            found = shapes.emplace(std::pair{g.in, g.out}, std::pair{described, packed}).first;
        }
        const auto& [described, packed] = found->second;
        memory weights(described.weights_desc(), all->engine);
        std::memcpy(weights.get_data_handle(), packed.get_data_handle(), described.weights_desc().get_size());
        all->primitives.emplace_back(described);
        all->arguments.push_back({{DNNL_ARG_SRC, memory(described.src_desc(), all->engine, g.x)},
                                  {DNNL_ARG_WEIGHTS, weights},
                                  {DNNL_ARG_DST, memory(described.dst_desc(), all->engine, g.to)}});
    }
    return all;
}

}  // namespace

// Null, with the reason on standard error, where oneDNN refuses.
FDLP_EXPORT void* onednn_new(const Given* given, int count, int rows, int int8) {
    try {
        return make(given, count, rows, int8 != 0).release();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "oneDNN: %s\n", error.what());
        return nullptr;
    }
}

FDLP_EXPORT void onednn_delete(void* products) { delete static_cast<Products*>(products); }

FDLP_EXPORT void onednn_multiply(void* products) {
    auto& all = *static_cast<Products*>(products);
    for (size_t i = 0; i < all.primitives.size(); ++i) all.primitives[i].execute(all.stream, all.arguments[i]);
    all.stream.wait();
}
