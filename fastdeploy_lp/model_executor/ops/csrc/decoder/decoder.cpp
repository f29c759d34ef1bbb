// A whole pre-norm decoder (Llama, Qwen2, Qwen3 and similar) as one operator: a step calls from Python once, not once per layer.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "decoder/attention.h"
#include "decoder/products.h"
#include "denormals.h"
#include "exports.h"

// The structures of structs.py, field by field.
struct Layer {
    Linear qkv, o, gate_up, down;  // gate_up: panels of 16 gate columns and their 16 up columns
    const float *input_norm, *post_attention_norm;
    const float *q_norm, *k_norm;  // [head_dim] or null
    void *keys, *values;
};

struct Model {
    int32_t num_layers, hidden_size, intermediate_size, num_heads, vocab_size, max_context;
    float eps, attention_scale;
    Cache cache;
    const float *cos, *sin;  // [max_context][head_dim / 2]
    Linear embedding;        // [vocab_size][hidden_size]: used only for lookup; may share the head's weights
    const float* norm;
    Linear head;
    const Layer* layers;
};

struct Batch {
    int32_t tokens, sequences, rows, table_width;
    const int32_t *token_ids, *positions;  // [tokens]
    const int32_t* query_starts;           // [sequences + 1]
    const int32_t* block_tables;           // [sequences][table_width]
    const int32_t* output_rows;            // [rows]: the tokens whose final hidden states are returned
};

namespace {

constexpr int kQueriesPerTask = 32;

// Scratch memory that only grows.
class Buffer {
   public:
    template <class T>
    T* of(int64_t count) {
        const int64_t bytes = count * static_cast<int64_t>(sizeof(T)) + 64;
        if (bytes > size_) memory_.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))), size_ = bytes;
        return reinterpret_cast<T*>(memory_.get());
    }

   private:
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    std::unique_ptr<char, Free> memory_;
    int64_t size_ = 0;
};

class ActivationBuffer {
   public:
    Activations of(int64_t rows, int in) {
        const int64_t groups = linear_int8::groups_of(in);
        return {values_.of<float>(rows * in), q_.of<int8_t>(Activations::kBytesPerInput * rows * groups * linear_int8::kGroup),
                scale_.of<float>(rows * groups), total_.of<float>(rows * groups), sums_.of<int32_t>(2 * rows * groups)};
    }

   private:
    Buffer values_, q_, scale_, total_, sums_;
};

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    Floats squares = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < n; ++i) total += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void rotate(float* x, const float* cos, const float* sin, int head_dim) {
    const int half = head_dim / 2;
    int d = 0;
    for (; d + kLanes <= half; d += kLanes) {
        const Floats a = load(x + d), b = load(x + half + d), c = load(cos + d), s = load(sin + d);
        store(x + d, a * c - b * s);
        store(x + half + d, b * c + a * s);
    }
    for (; d < half; ++d) {
        const float a = x[d], b = x[half + d];
        x[d] = a * cos[d] - b * sin[d];
        x[half + d] = b * cos[d] + a * sin[d];
    }
}

// x / (1 + e^-x)
Floats silu(Floats x) { return x / (1.0f + exp_up_to_87(-maximum(x, splat(-87.0f)))); }

class Decoder {
   public:
    explicit Decoder(const Model& model) : m_(model), layers_(model.layers, model.layers + model.num_layers) {}

    void forward(const Batch& batch, float* hidden);
    void logits(const float* hidden, int rows, float* out);

   private:
    struct Pass {
        const Batch& batch;
        int residual_stride, qkv_stride;
        float *residual, *qkv;
        float *attention, *pairs, *sums;  // of all threads, see Own
        Activations normed, attended, gated;
        std::vector<int32_t> task_sequence, task_first_query;
    };
    // State of one thread.
    struct Own {
        Prefetcher prefetcher;
        AttentionRoom attention;
        float* pair;  // output of a pair of panels, [tokens][32]
        float* sums;  // of a panel, [tokens][32]
    };

    Pass prepare(const Batch& batch);
    Own own(const Pass& pass, const Member& team) const;
    std::vector<int32_t> blocks_of(const Pass& pass, Share tasks) const;
    void embed(const Pass& pass, int token) const;
    void normalize(const Pass& pass, const float* weight, const Linear& into, int token) const;
    void rotate_and_cache(const Pass& pass, const Layer& layer, int token, int head) const;
    void attend_task(const Pass& pass, const Layer& layer, int task, bool rotated, Own& own) const;
    template <class Element>
    Context<Element> context_of(const Pass& pass, const Layer& layer, int task) const;
    template <class Element>
    void attend_queries(const Pass& pass, const Layer& layer, int task, int first, int end, const AttentionRoom& room) const;
    void project(const Pass& pass, const Layer& layer, int panel, Own& own) const;
    void add_product(const Pass& pass, const Product& product, const Activations& x, int panel, Own& own) const;
    void gate(const Pass& pass, const Layer& layer, int pair, Own& own) const;
    // Prefetches of a thread during a layer's last products.
    static int64_t asks_of(const Layer& layer, int rows, const Member& team) {
        int64_t asks = 0;
        for (const Linear* product : {&layer.gate_up, &layer.down}) {
            const Share share = Share::of(product->panels(), team.thread(), team.threads());
            // Nearly all products have one format.
            const int each = product->count > 1 ? 1 : share.end - share.first;
            for (int panel = share.first; panel < share.end; panel += each) asks += static_cast<int64_t>(each) * product->asks(rows, panel);
        }
        return asks;
    }
    int64_t attention_floats() const { return kMaxAttentionRows * (query_floats() + score_stride()); }
    int query_floats() const { return round_up(m_.cache.head_dim, kLanes); }
    int64_t score_stride() const { return round_up(m_.max_context + m_.cache.block_size, kLanes) + kLanes; }
    int group() const { return m_.num_heads / m_.cache.kv_heads; }
    bool heads_are_groups() const { return group() * m_.cache.head_dim % linear_int8::kGroup == 0; }

    Model m_;
    std::vector<Layer> layers_;
    Buffer residual_, qkv_, attention_, pairs_, sums_;
    ActivationBuffer normed_, attended_, gated_, head_input_;
};

Decoder::Pass Decoder::prepare(const Batch& batch) {
    const int heads = m_.num_heads + 2 * m_.cache.kv_heads;
    Pass pass{batch, round_up(m_.hidden_size, kPanel), round_up(heads * m_.cache.head_dim, kPanel)};
    const int64_t tokens = batch.tokens;
    pass.residual = residual_.of<float>(tokens * pass.residual_stride);
    pass.qkv = qkv_.of<float>(tokens * pass.qkv_stride);
    pass.attention = attention_.of<float>(omp_get_max_threads() * attention_floats());
    pass.pairs = pairs_.of<float>(omp_get_max_threads() * tokens * kPanel);
    pass.sums = sums_.of<float>(omp_get_max_threads() * tokens * kPanel);
    pass.normed = normed_.of(tokens, m_.hidden_size);
    pass.attended = attended_.of(tokens, m_.num_heads * m_.cache.head_dim);
    pass.gated = gated_.of(tokens, m_.intermediate_size);
    for (int s = 0; s < batch.sequences; ++s) {
        const int end = batch.query_starts[s + 1];
        for (int first = batch.query_starts[s]; first < end; first += kQueriesPerTask) {
            pass.task_sequence.push_back(s);
            pass.task_first_query.push_back(first);
        }
    }
    return pass;
}

Decoder::Own Decoder::own(const Pass& pass, const Member& team) const {
    const int attention_tasks = static_cast<int>(pass.task_sequence.size()) * m_.cache.kv_heads;
    float* attention = pass.attention + team.thread() * attention_floats();
    return {{m_.cache, blocks_of(pass, Share::of(attention_tasks, team.thread(), team.threads())), team.thread(), team.threads()},
            {attention, attention + kMaxAttentionRows * query_floats(), score_stride()},
            pass.pairs + static_cast<int64_t>(team.thread()) * pass.batch.tokens * kPanel,
            pass.sums + static_cast<int64_t>(team.thread()) * pass.batch.tokens * kPanel};
}

// Cache blocks of all contexts that these attention tasks read.
std::vector<int32_t> Decoder::blocks_of(const Pass& pass, Share tasks) const {
    std::vector<int32_t> blocks;
    int last = -1;
    for (int task = tasks.first; task < tasks.end; ++task) {
        const int sequence = pass.task_sequence[task / m_.cache.kv_heads];
        if (sequence == std::exchange(last, sequence)) continue;
        const int32_t* table = pass.batch.block_tables + static_cast<int64_t>(sequence) * pass.batch.table_width;
        blocks.insert(blocks.end(), table,
                      table + pass.batch.positions[pass.batch.query_starts[sequence + 1] - 1] / m_.cache.block_size + 1);
    }
    return blocks;
}

void Decoder::embed(const Pass& pass, int token) const {
    const int id = pass.batch.token_ids[token];
    float* to = pass.residual + static_cast<int64_t>(token) * pass.residual_stride;
    m_.embedding.expand_row(to, id);
}

void Decoder::normalize(const Pass& pass, const float* weight, const Linear& into, int token) const {
    const float* x = pass.residual + static_cast<int64_t>(token) * pass.residual_stride;
    rms_norm(x, weight, m_.hidden_size, m_.eps, pass.normed.values + static_cast<int64_t>(token) * m_.hidden_size);
    pass.normed.prepare(into, token);
}

// Rotates the queries and the key of one key-value head, and stores its key and value in the cache.
void Decoder::rotate_and_cache(const Pass& pass, const Layer& layer, int token, int head) const {
    const Cache& cache = m_.cache;
    const int dim = cache.head_dim, position = pass.batch.positions[token];
    int sequence = 0;
    while (pass.batch.query_starts[sequence + 1] <= token) ++sequence;
    const int block = pass.batch.block_tables[static_cast<int64_t>(sequence) * pass.batch.table_width + position / cache.block_size];
    const float* cos = m_.cos + static_cast<int64_t>(position) * (dim / 2);
    const float* sin = m_.sin + static_cast<int64_t>(position) * (dim / 2);
    float* row = pass.qkv + static_cast<int64_t>(token) * pass.qkv_stride;
    float* queries = row + head * group() * dim;
    float* key = row + (m_.num_heads + head) * dim;
    const float* value = row + (m_.num_heads + cache.kv_heads + head) * dim;
    for (int h = 0; h < group(); ++h) {
        if (layer.q_norm != nullptr) rms_norm(queries + h * dim, layer.q_norm, dim, m_.eps, queries + h * dim);
        rotate(queries + h * dim, cos, sin, dim);
    }
    for (int i = 0; i < group() * dim; ++i) queries[i] *= m_.attention_scale;
    if (layer.k_norm != nullptr) rms_norm(key, layer.k_norm, dim, m_.eps, key);
    rotate(key, cos, sin, dim);
    const int offset = position % cache.block_size;
    if (cache.half)
        write_key_value(cache, static_cast<uint16_t*>(layer.keys), static_cast<uint16_t*>(layer.values), block, offset, head, key, value);
    else
        write_key_value(cache, static_cast<float*>(layer.keys), static_cast<float*>(layer.values), block, offset, head, key, value);
}

// Context of an attention task; empty after the last task.
template <class Element>
Context<Element> Decoder::context_of(const Pass& pass, const Layer& layer, int task) const {
    const size_t index = task / m_.cache.kv_heads;
    if (index >= pass.task_sequence.size()) return {};
    const int sequence = pass.task_sequence[index];
    const int last = pass.batch.positions[pass.batch.query_starts[sequence + 1] - 1];
    const int32_t* table = pass.batch.block_tables + static_cast<int64_t>(sequence) * pass.batch.table_width;
    return {m_.cache, layer.keys, layer.values, table, last / m_.cache.block_size + 1, task % m_.cache.kv_heads};
}

template <class Element>
void Decoder::attend_queries(const Pass& pass, const Layer& layer, int task, int first, int end, const AttentionRoom& room) const {
    const Context<Element> context = context_of<Element>(pass, layer, task), next = context_of<Element>(pass, layer, task + 1);
    ContextPrefetcher<Element> prefetcher(context, next);
    const int head = task % m_.cache.kv_heads, dim = m_.cache.head_dim, count = (end - first) * group();
    for (int row = 0; row < count; row += kMaxAttentionRows) {
        const int rows = count - row < kMaxAttentionRows ? count - row : kMaxAttentionRows;
        const float* queries[kMaxAttentionRows];
        float* outs[kMaxAttentionRows];
        int lengths[kMaxAttentionRows];
        for (int r = 0; r < rows; ++r) {
            const int token = first + (row + r) / group(), column = (head * group() + (row + r) % group()) * dim;
            queries[r] = pass.qkv + static_cast<int64_t>(token) * pass.qkv_stride + column;
            outs[r] = pass.attended.values + static_cast<int64_t>(token) * m_.num_heads * dim + column;
            lengths[r] = pass.batch.positions[token] + 1;
        }
        switch (rows) {
#define FDLP_ROWS(n) \
    case n: attend<n>(context, prefetcher, queries, lengths, outs, room); break;
            FDLP_ROWS(1) FDLP_ROWS(2) FDLP_ROWS(3) FDLP_ROWS(4) FDLP_ROWS(5) FDLP_ROWS(6)
#undef FDLP_ROWS
        }
    }
}

void Decoder::attend_task(const Pass& pass, const Layer& layer, int task, bool rotated, Own& own) const {
    const int head = task % m_.cache.kv_heads, sequence = pass.task_sequence[task / m_.cache.kv_heads];
    const int first = pass.task_first_query[task / m_.cache.kv_heads], last = pass.batch.query_starts[sequence + 1];
    const int end = first + kQueriesPerTask < last ? first + kQueriesPerTask : last;
    for (int token = first; token < end && !rotated; ++token) rotate_and_cache(pass, layer, token, head);
    if (m_.cache.half)
        attend_queries<uint16_t>(pass, layer, task, first, end, own.attention);
    else
        attend_queries<float>(pass, layer, task, first, end, own.attention);
    const int width = group() * m_.cache.head_dim, column = head * width;
    for (int token = first; token < end && heads_are_groups(); ++token)
        pass.attended.prepare(layer.o, token, column, pass.attended.values + static_cast<int64_t>(token) * layer.o.in + column, width);
}

void Decoder::project(const Pass& pass, const Layer& layer, int panel, Own& own) const {
    multiply_panel({layer.qkv, &layer.o}, pass.normed, pass.batch.tokens, panel, own.sums, own.prefetcher,
                   [&](int row, Floats low, Floats high) {
                       float* to = pass.qkv + static_cast<int64_t>(row) * pass.qkv_stride + panel * kPanel;
                       store(to, low);
                       store(to + kLanes, high);
                   });
}

void Decoder::add_product(const Pass& pass, const Product& product, const Activations& x, int panel, Own& own) const {
    multiply_panel(product, x, pass.batch.tokens, panel, own.sums, own.prefetcher, [&](int row, Floats low, Floats high) {
        float* to = pass.residual + static_cast<int64_t>(row) * pass.residual_stride + panel * kPanel;
        store(to, load(to) + low);
        store(to + kLanes, load(to + kLanes) + high);
    });
}

// A pair of panels produces 32 columns: one group of the next product's activations, rounded or quantized here if that product is.
void Decoder::gate(const Pass& pass, const Layer& layer, int pair, Own& own) const {
    const bool prepares = layer.down.prepares();
    const int tokens = pass.batch.tokens, first = pair * kPanel, stride = prepares ? kPanel : m_.intermediate_size;
    const int columns = m_.intermediate_size - first < kPanel ? m_.intermediate_size - first : kPanel;
    float* out = prepares ? own.pair : pass.gated.values + first;
    for (int half = 0; half * kLanes < columns; ++half) {
        float* to = out + half * kLanes;
        const auto put = [=](int row, Floats gate, Floats up) {
            store_first(to + static_cast<int64_t>(row) * stride, silu(gate) * up, columns - half * kLanes);
        };
        multiply_panel({layer.gate_up, &layer.down}, pass.normed, tokens, 2 * pair + half, own.sums, own.prefetcher, put);
    }
    pass.gated.prepare_rows(layer.down, tokens, first, out, stride, columns);
}

void Decoder::forward(const Batch& batch, float* hidden) {
    const Pass pass = prepare(batch);
    const int attention_tasks = static_cast<int>(pass.task_sequence.size()) * m_.cache.kv_heads;
    // Queries of one sequence in several tasks read each other's keys, so all keys must be stored before the first task.
    const bool rotate_first = static_cast<int>(pass.task_sequence.size()) > batch.sequences;
    Team::forward([&](Member& team) {
        const DenormalsAreZero flush(m_.head.bfloat16);
        const tiles::Release release_at_end;
        Own own = this->own(pass, team);
        team.run(batch.tokens, [&](int token) { embed(pass, token); });
        for (size_t index = 0; index < layers_.size(); ++index) {
            const Layer& layer = layers_[index];
            const Layer* following = index + 1 < layers_.size() ? &layers_[index + 1] : nullptr;
            team.run(batch.tokens, [&](int token) { normalize(pass, layer.input_norm, layer.qkv, token); });
            team.run(layer.qkv.panels(), [&](int panel) { project(pass, layer, panel, own); });
            if (rotate_first)
                team.run(batch.tokens, [&](int token) {
                    for (int head = 0; head < m_.cache.kv_heads; ++head) rotate_and_cache(pass, layer, token, head);
                });
            team.run(attention_tasks, [&](int task) { attend_task(pass, layer, task, rotate_first, own); });
            if (!heads_are_groups()) team.run(batch.tokens, [&](int token) { pass.attended.prepare(layer.o, token); });
            team.run(layer.o.panels(), [&](int panel) { add_product(pass, {layer.o, &layer.gate_up}, pass.attended, panel, own); });
            team.run(batch.tokens, [&](int token) { normalize(pass, layer.post_attention_norm, layer.gate_up, token); });
            own.prefetcher.read_cache(following == nullptr ? nullptr : following->keys, following == nullptr ? nullptr : following->values,
                                      asks_of(layer, batch.tokens, team));
            team.run((layer.gate_up.panels() + 1) / 2, [&](int pair) { gate(pass, layer, pair, own); });
            team.run(layer.down.panels(), [&](int panel) {
                add_product(pass, {layer.down, following == nullptr ? nullptr : &following->qkv}, pass.gated, panel, own);
            });
        }
        team.run(batch.rows, [&](int row) {
            const float* x = pass.residual + static_cast<int64_t>(batch.output_rows[row]) * pass.residual_stride;
            rms_norm(x, m_.norm, m_.hidden_size, m_.eps, hidden + static_cast<int64_t>(row) * m_.hidden_size);
        });
    });
}

void Decoder::logits(const float* hidden, int rows, float* out) {
    const Activations x = head_input_.of(rows, m_.hidden_size);
    float* all_sums = sums_.of<float>(static_cast<int64_t>(omp_get_max_threads()) * rows * kPanel);
    Team::forward([&](Member& team) {
        const DenormalsAreZero flush(m_.head.bfloat16);
        const tiles::Release release_at_end;
        team.run(rows, [&](int row) {
            const int64_t from = static_cast<int64_t>(row) * m_.hidden_size;
            std::memcpy(x.values + from, hidden + from, sizeof(float) * m_.hidden_size);
            x.prepare(m_.head, row);
        });
        Prefetcher prefetcher(m_.cache, {}, team.thread(), team.threads());
        float* sums = all_sums + static_cast<int64_t>(team.thread()) * rows * kPanel;
        team.run(m_.head.panels(), [&](int panel) {
            // Logits are too many for the caches, and stores to lines that are not there would wait.
            for (int row = 0; row < rows; ++row) {
                const float* to = out + static_cast<int64_t>(row) * m_.vocab_size + panel * kPanel;
                __builtin_prefetch(to, 1), __builtin_prefetch(to + kLanes, 1);
            }
            multiply_panel({m_.head, nullptr}, x, rows, panel, sums, prefetcher, [&](int row, Floats low, Floats high) {
                float* to = out + static_cast<int64_t>(row) * m_.vocab_size + panel * kPanel;
                store_first(to, low, m_.vocab_size - panel * kPanel);
                store_first(to + kLanes, high, m_.vocab_size - panel * kPanel - kLanes);
            });
        });
    });
}

}  // namespace

FDLP_EXPORT void* fdlp_decoder_new(const Model* model) { return new Decoder(*model); }

FDLP_EXPORT void fdlp_decoder_delete(void* decoder) { delete static_cast<Decoder*>(decoder); }

// Writes the batch's keys and values to the cache, and the normed final hidden states of output_rows to hidden [rows][hidden_size].
FDLP_EXPORT void fdlp_decoder_forward(void* decoder, const Batch* batch, float* hidden) {
    static_cast<Decoder*>(decoder)->forward(*batch, hidden);
}

// hidden [rows][hidden_size] → out [rows][vocab_size].
FDLP_EXPORT void fdlp_decoder_logits(void* decoder, const float* hidden, int rows, float* out) {
    static_cast<Decoder*>(decoder)->logits(hidden, rows, out);
}
