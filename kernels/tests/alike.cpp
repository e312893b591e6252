// Every instruction set of this processor beside the portable one, on random numbers, by the functions that other
// languages call: for where there is no Python, such as an emulator of another processor. Ends with 1 where one is apart.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

struct Linear;
extern "C" {
const char* sv_built(int place);
int sv_runs_here(const char* name);
int sv_use(const char* name);
Linear* sv_linear_new(const float* weight, const float* bias, int n_out, int n_in);
void sv_linear_free(Linear* linear);
int sv_linear_apply(const Linear* layer, const float* x, int n_rows, float* out, int epilogue, int n_threads);
void sv_layer_norm(const float* x, const float* weight, const float* bias, int n_rows, int n, float* out);
int sv_attend_self(const float* query, const float* keys_values, int n_tokens, int d_head, float* out);
int sv_attend_cross(const float* queries, int n_queries, const float* keys, const float* values, int n_frames,
                    int d_head, int first, int last, const float* bias, float* out, float* weights);
int sv_choose(const float* logits, int first_text, int time_begin, int first_time, int last_time, int n_best,
              float* best, int32_t* tokens);
int sv_words_apply(const float* weight, const float* bias, int n_out, int n_in, const float* x, int n_rows, float* out,
                   int epilogue);
int sv_attend_tiles(const float* queries, int n_queries, const float* keys, const float* values, int n_frames,
                    int d_head, const float* bias, float* out);
}

namespace {

using Numbers = std::vector<float>;
std::mt19937 generator(1);

int any(int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); }

// A few of them far out, as activations of trained networks have them.
Numbers normal(int n) {
    std::normal_distribution<float> draw;
    Numbers numbers(n);
    for (float& number : numbers) number = draw(generator) * (any(0, 99) ? 1.0f : 20.0f);
    return numbers;
}

struct Check {
    const char* name;
    float tolerance;  // of the largest number
    std::function<std::function<Numbers()>()> make;  // draws a case
};

std::function<Numbers()> products() {
    const int n_rows = any(1, 40), n_out = any(1, 100), n_in = any(1, 300), epilogue = any(0, 2), threads = any(1, 3);
    const Numbers weight = normal(n_out * n_in), bias = normal(n_out), x = normal(n_rows * n_in);
    return [=] {
        Numbers out(n_rows * n_out, 1.0f);
        Linear* table = sv_linear_new(weight.data(), bias.data(), n_out, n_in);
        sv_linear_apply(table, x.data(), n_rows, out.data(), epilogue, threads);
        sv_linear_free(table);
        return out;
    };
}

std::function<Numbers()> norms() {
    const int n = any(1, 300);
    const Numbers x = normal(3 * n), weight = normal(n), bias = normal(n);
    return [=] {
        Numbers out(3 * n);
        sv_layer_norm(x.data(), weight.data(), bias.data(), 3, n, out.data());
        return out;
    };
}

std::function<Numbers()> self_attention() {
    const int n = any(1, 60), d = any(1, 80);
    const Numbers query = normal(d), keys_values = normal(2 * n * d);
    return [=] {
        Numbers out(d);
        sv_attend_self(query.data(), keys_values.data(), n, d, out.data());
        return out;
    };
}

std::function<Numbers()> cross_attention() {
    const int queries = any(1, 13), n = any(1, 200), d = any(1, 80), first = any(0, n - 1), last = any(first + 1, n);
    const Numbers q = normal(queries * d), keys = normal(n * d), values = normal(n * d), bias = normal(n);
    return [=] {
        Numbers out(queries * d), weights(queries * n);
        sv_attend_cross(q.data(), queries, keys.data(), values.data(), n, d, first, last, bias.data(), out.data(),
                        weights.data());
        out.insert(out.end(), weights.begin(), weights.end());
        return out;
    };
}

std::function<Numbers()> choices() {
    const int n_text = any(20, 400), n_times = any(0, 200), from = any(0, 10), n_best = any(1, 7);
    const Numbers logits = normal(n_text + n_times);
    return [=] {
        Numbers found(n_best);
        std::vector<int32_t> tokens(n_best);
        sv_choose(logits.data(), from, n_text, n_text, n_text + n_times, n_best, found.data(), tokens.data());
        for (int32_t token : tokens) found.push_back(1e3f * static_cast<float>(token));
        return found;
    };
}

std::function<Numbers()> words() {
    const int n_rows = any(1, 40), n_out = any(1, 100), n_in = any(1, 300), epilogue = any(0, 2);
    const Numbers weight = normal(n_out * n_in), bias = normal(n_out), x = normal(n_rows * n_in);
    return [=] {
        Numbers out(n_rows * n_out, 1.0f);
        sv_words_apply(weight.data(), bias.data(), n_out, n_in, x.data(), n_rows, out.data(), epilogue);
        return out;
    };
}

std::function<Numbers()> tiles() {
    const int queries = any(1, 60), n = any(1, 600), d = 2 * any(1, 40);
    const Numbers q = normal(queries * d), keys = normal(n * d), values = normal(n * d), bias = normal(n);
    return [=] {
        Numbers out(queries * d);
        sv_attend_tiles(q.data(), queries, keys.data(), values.data(), n, d, bias.data(), out.data());
        return out;
    };
}

bool alike(const Check& check, const char* name) {
    for (int turn = 0; turn < 100; ++turn) {
        const auto compute = check.make();
        sv_use("portable");
        const Numbers expected = compute();
        sv_use(name);
        const Numbers found = compute();
        float largest = 1.0f, apart = 0.0f;
        for (float number : expected) largest = std::fmax(largest, std::fabs(number));
        for (size_t i = 0; i < found.size(); ++i)
            apart = found[i] == expected[i] ? apart : std::fmax(apart, std::fabs(found[i] - expected[i]));
        if (apart <= check.tolerance * largest) continue;
        std::printf("%s: %s are %g apart, at most %g expected\n", name, check.name, apart, check.tolerance * largest);
        return false;
    }
    return true;
}

}  // namespace

int main() {
    const Check checks[] = {
        {"products", 1e-4f, products},        {"norms", 1e-4f, norms},     {"self-attention", 1e-4f, self_attention},
        {"cross-attention", 1e-2f, cross_attention}, {"choices", 1e-4f, choices}, {"words", 1e-3f, words},
        {"tiles", 5e-3f, tiles},
    };
    int n_apart = 0;
    for (int place = 1; const char* name = sv_built(place); ++place) {
        if (!sv_runs_here(name)) continue;
        int n_alike = 0;
        for (const Check& check : checks) n_alike += alike(check, name);
        std::printf("%s: %d of %zu alike\n", name, n_alike, std::size(checks));
        n_apart += n_alike != static_cast<int>(std::size(checks));
    }
    return n_apart != 0;
}
