// Attention of the decoder, over the numbers of an instruction set; included after math.h.
#pragma once

namespace sottovoce {
namespace {

inline float dot(const float* a, const float* b, int n) {
    F sum = F::set(0.0f);
    int i = 0;
    for (; i + F::n <= n; i += F::n) sum = fused(F::load(a + i), F::load(b + i), sum);
    if (i < n) sum = fused(F::load_some(a + i, n - i), F::load_some(b + i, n - i), sum);
    return sum.sum();
}

// Logits into what they are a share of; zeros where there is nothing to share.
inline void softmax(float* x, int n) {
    F most = F::set(-__builtin_inff());
    int i = 0;
    for (; i + F::n <= n; i += F::n) most = larger(most, F::load(x + i));
    float largest = most.most();
    for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    if (!(largest > -__builtin_inff())) largest = 0.0f;
    F sum = F::set(0.0f);
    for (i = 0; i + F::n <= n; i += F::n) {
        const F share = exponential(F::load(x + i) - F::set(largest));
        share.store(x + i);
        sum = sum + share;
    }
    float total = sum.sum();
    if (i < n) {
        float last[F::n] = {0.0f};
        exponential(F::load_some(x + i, n - i) - F::set(largest)).store(last);
        for (int j = 0; i < n; ++i, ++j) {
            x[i] = last[j];
            total += last[j];
        }
    }
    const F inverse = F::set(total > 0.0f ? 1.0f / total : 0.0f);
    for (i = 0; i + F::n <= n; i += F::n) (F::load(x + i) * inverse).store(x + i);
    if (i < n) (F::load_some(x + i, n - i) * inverse).store_some(x + i, n - i);
}

void attend_self(const SelfAttention& a) {
    for (int t = 0; t < a.n_tokens; ++t) a.weights[t] = a.scale * dot(a.query, a.entries[t], a.d_head);
    softmax(a.weights, a.n_tokens);
    constexpr int kAtOnce = 4;
    for (int at = 0; at < a.d_head; at += kAtOnce * F::n) {
        F sums[kAtOnce];
        for (F& sum : sums) sum = F::set(0.0f);
        for (int t = 0; t < a.n_tokens; ++t) {
            const float* value = a.entries[t] + a.value_at + at;
            const F weight = F::set(a.weights[t]);
            for (int i = 0; i < kAtOnce; ++i) {
                const int left = a.d_head - at - i * F::n;
                if (left >= F::n)
                    sums[i] = fused(F::load(value + i * F::n), weight, sums[i]);
                else if (left > 0)
                    sums[i] = fused(F::load_some(value + i * F::n, left), weight, sums[i]);
            }
        }
        for (int i = 0; i < kAtOnce; ++i) {
            const int left = a.d_head - at - i * F::n;
            if (left > 0) sums[i].store_some(a.out + at + i * F::n, left < F::n ? left : F::n);
        }
    }
}

constexpr int kRegisters = F::n == 16 || F::n == 4 ? 20 : F::n == 1 ? 16 : 8;  // sums that are kept at once
constexpr int kMostQueries = F::n == 16 ? 5 : 4;
constexpr int kMostPad = 256;  // numbers of a head, padded
constexpr int kPairsAtOnce = 64;
constexpr int kAhead = 16;  // pairs of frames whose values are fetched ahead

// Logits of Q queries to the frames of some blocks.
template <int Q>
void cross_logits(const CrossAttention& a, int first_query) {
    constexpr int kParts = kBlock / F::n;  // registers a block
    constexpr int kAtOnce = kRegisters / Q < kParts ? kRegisters / Q : kParts;
    constexpr int kBlocks = kParts > kAtOnce ? 1 : kRegisters / (Q * kParts) < 4 ? kRegisters / (Q * kParts) : 4;
    constexpr int kSums = kParts > kAtOnce ? kAtOnce : kBlocks * kParts;
    const int n_pairs = a.d_pad / 2;
    Pair query[Q][kMostPad / 2];
    for (int q = 0; q < Q; ++q) {
        const float* from = a.queries + static_cast<size_t>(first_query + q) * a.query_stride;
        float scaled[kMostPad];
        for (int i = 0; i < a.d_pad; ++i) scaled[i] = i < a.d_head ? from[i] * a.scale : 0.0f;
        fill_pairs(scaled, n_pairs, query[q]);
    }
    const size_t block_size = static_cast<size_t>(n_pairs) * kBlock * 2;
    const int n_parts = (a.last_block - a.first_block) * kParts;
    for (int part = 0; part < n_parts; part += kSums) {
        F sums[kSums][Q];
        const uint16_t* keys[kSums];
        for (int s = 0; s < kSums; ++s) {
            const int at = part + s < n_parts ? part + s : n_parts - 1;
            keys[s] = a.keys + (a.first_block + at / kParts) * block_size + (at % kParts) * F::n * 2;
            for (int q = 0; q < Q; ++q) sums[s][q] = F::set(0.0f);
        }
        for (int j = 0; j < n_pairs; ++j)
            for (int s = 0; s < kSums; ++s) {
                const uint16_t* pairs = keys[s] + static_cast<size_t>(j) * kBlock * 2;
                __builtin_prefetch(pairs + kSums / (kParts > kAtOnce ? kSums : kParts) * block_size);
                for (int q = 0; q < Q; ++q) sums[s][q] = dot_pairs(sums[s][q], pairs, query[q][j]);
            }
        for (int s = 0; s < kSums && part + s < n_parts; ++s)
            for (int q = 0; q < Q; ++q)
                sums[s][q].store(a.weights + (first_query + q) * a.weights_stride + (part + s) * F::n);
    }
}

// Weighted sums of the values, for Q queries.
template <int Q>
void cross_values(const CrossAttention& a, int first_query) {
    constexpr int kAtOnce = kRegisters / Q < 4 ? kRegisters / Q : 4;
    const int n_pairs = (a.last_block - a.first_block) * kBlock / 2;
    const uint16_t* values = a.values + static_cast<size_t>(a.first_block) * (kBlock / 2) * a.d_pad * 2;
    Pair weight[Q][kPairsAtOnce];
    for (int at = 0; at < a.d_pad; at += kAtOnce * F::n) {
        F sums[kAtOnce][Q];
        for (auto& of_queries : sums)
            for (F& sum : of_queries) sum = F::set(0.0f);
        const bool all = at + kAtOnce * F::n <= a.d_pad;
        for (int t = 0; t < n_pairs; ++t) {
            const int place = t % kPairsAtOnce;
            if (!place)
                for (int q = 0; q < Q; ++q)
                    fill_pairs(a.weights + (first_query + q) * a.weights_stride + 2 * t,
                               n_pairs - t < kPairsAtOnce ? n_pairs - t : kPairsAtOnce, weight[q]);
            const uint16_t* pairs = values + (static_cast<size_t>(t) * a.d_pad + at) * 2;
            for (int i = 0; i < kAtOnce && (all || at + i * F::n < a.d_pad); ++i) {
                __builtin_prefetch(pairs + i * F::n * 2 + static_cast<size_t>(kAhead) * a.d_pad * 2);
                for (int q = 0; q < Q; ++q)
                    sums[i][q] = dot_pairs(sums[i][q], pairs + i * F::n * 2, weight[q][place]);
            }
        }
        for (int q = 0; q < Q; ++q)
            for (int i = 0; i < kAtOnce; ++i) {
                const int left = a.d_head - at - i * F::n;
                float* to = a.out + (first_query + q) * a.out_stride + at + i * F::n;
                if (left > 0) sums[i][q].store_some(to, left < F::n ? left : F::n);
            }
    }
}

// Mask frames outside the span, and add the bias to the others.
inline void add_bias(const CrossAttention& a, float* logits) {
    const int first = a.first_block * kBlock, n = a.last_block * kBlock - first;
    const int begin = a.first_frame - first, end = a.last_frame - first;
    for (int t = 0; t < begin; ++t) logits[t] = -__builtin_inff();
    if (a.bias)
        for (int t = begin; t < end; ++t) logits[t] += a.bias[first + t];
    for (int t = end; t < n; ++t) logits[t] = -__builtin_inff();
}

template <int Q>
void attend_some(const CrossAttention& a, int first_query) {
    cross_logits<Q>(a, first_query);
    for (int q = 0; q < Q; ++q) {
        float* logits = a.weights + (first_query + q) * a.weights_stride;
        add_bias(a, logits);
        softmax(logits, (a.last_block - a.first_block) * kBlock);
    }
    cross_values<Q>(a, first_query);
}

void attend_cross(const CrossAttention& a) {
    int at = 0;
    for (; at + kMostQueries <= a.n_queries; at += kMostQueries) attend_some<kMostQueries>(a, at);
    switch (a.n_queries - at) {
        case 4: attend_some<kMostQueries < 4 ? 1 : 4>(a, at); break;
        case 3: attend_some<3>(a, at); break;
        case 2: attend_some<2>(a, at); break;
        case 1: attend_some<1>(a, at); break;
        default: break;
    }
}

}  // namespace
}  // namespace sottovoce
