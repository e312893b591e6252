#include "scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sottovoce::ctc {

namespace {

constexpr float kRounding = 1e-3f;  // sums of bounds are rounded

// The place of a value in values[low:high], ascending; -1: it is not there.
template <class Value>
int64_t find(const Value* values, int64_t low, int64_t high, Value wanted) {
    const Value* at = std::lower_bound(values + low, values + high, wanted);
    return at != values + high && *at == wanted ? at - values : -1;
}

}  // namespace

Step Model::back_off(int64_t node, int64_t id) const {
    float score = 0.0f;
    while (node != kRoot) {
        const int64_t place = find(a_.keys, a_.first[node], a_.first[node + 1], node * a_.n_ids + id);
        if (place >= 0) return {score + a_.weights[place], a_.targets[place]};
        score += a_.backoff[node];
        node = a_.parent[node];
    }
    return {score + a_.root_weights[id], a_.root_targets[id]};
}

float Model::end(int64_t state) const {
    if (a_.probing) return weighted(a_.probing->end(state), a_.weight);
    if (a_.trie) return weighted(a_.trie->end(static_cast<uint64_t>(state)), a_.weight);
    return a_.ends ? weighted(a_.ends[state], a_.weight) : 0.0f;
}

// The most that backing off from a node gains.
float Model::most_backing_off(float sign) const {
    std::vector<float> paid(a_.n_nodes, 0.0f);
    for (bool changed = true; changed;) {  // nodes come after their parents: once, and once to see it
        changed = false;
        for (int64_t node = 1; node < a_.n_nodes; ++node) {
            const float more = std::max(a_.backoff[node] * sign + paid[a_.parent[node]], 0.0f);
            changed = changed || more != paid[node];
            paid[node] = more;
        }
    }
    return paid.empty() ? 0.0f : *std::max_element(paid.begin(), paid.end());
}

void Model::add_bounds(float* bounds, int n_tokens) const {
    const float sign = a_.weight >= 0.0f ? 1.0f : -1.0f;
    std::vector<float> best(a_.n_ids);
    for (int64_t id = 0; id < a_.n_ids; ++id) best[id] = a_.root_weights[id] * sign;
    for (int64_t node = 1; node < a_.n_nodes; ++node)
        for (int64_t arc = a_.first[node]; arc < a_.first[node + 1]; ++arc) {
            float& id = best[a_.keys[arc] - node * a_.n_ids];
            id = std::max(id, a_.weights[arc] * sign);
        }
    const float more = most_backing_off(sign);
    for (int token = 0; token < n_tokens; ++token) {
        float most = best[a_.ids[token]] + more;
        if (a_.begins && a_.begins[token]) most += best[a_.silent] + more;
        if (std::isfinite(most)) bounds[token] += most * std::fabs(a_.weight);
    }
}

Lexicon::Lexicon(const LexiconArrays& arrays, int n_tokens)
    : a(arrays), nodes(arrays.n_nodes + 1), tokens_(arrays.n_nodes - 2) {
    const int n_children = static_cast<int>(tokens_.size());
    const float unknown = a.unknown >= 0 ? a.ahead[kUnknownNode] : kNever;
    for (int64_t node = 0, child = 0; node < a.n_nodes; ++node) {
        const int first = static_cast<int>(child);
        float best = unknown;
        for (; child < n_children && a.keys[child] < (node + 1) * n_tokens; ++child) {
            tokens_[child] = static_cast<int32_t>(a.keys[child] - node * n_tokens);
            best = std::max(best, a.ahead[child + 2]);
        }
        nodes[node] = {first, static_cast<int>(a.first_word[node]), static_cast<int>(a.n_words_of[node]),
                       a.ahead[node], best - a.ahead[node], kNever};
    }
    nodes[a.n_nodes].first = n_children;
}

void Lexicon::bound_endings(const std::vector<float>& words_most) {
    std::vector<float> best(a.n_nodes, kNever);
    for (int64_t node = 0; node < a.n_nodes; ++node)
        for (int i = 0; i < nodes[node].n_words; ++i)
            best[node] = std::max(best[node], words_most[a.words[nodes[node].first_word + i]]);
    for (int64_t node = 0; node < a.n_nodes; ++node) {
        float most = node == kRoot ? 0.0f : best[node];
        if (!has_separator()) {  // a word ends with the step to the node that spells it
            most = kNever;
            for (int child = nodes[node].first; child < nodes[node + 1].first; ++child)
                most = std::max(most, best[child + 2]);
        }
        if (a.unknown >= 0) most = std::max(most, words_most[a.unknown]);
        nodes[node].ending = most - nodes[node].ahead;
    }
}

int Lexicon::child(int node, int token) const {
    if (token == a.separator) return -1;
    const int64_t place = find<int32_t>(tokens_.data(), nodes[node].first, nodes[node + 1].first, token);
    return place < 0 ? -1 : static_cast<int>(place) + 2;
}

int Lexicon::n_arcs() const {
    const int most = static_cast<int>(a.n_homophones);
    return has_separator() ? most : 1 + most + (a.unknown >= 0 ? 2 : 0);
}

int Lexicon::next(int number, int child, int token) const {
    if (has_separator()) return token == a.separator ? number + 1 : n_arcs();
    const int known = child < 0 ? 0 : nodes[child].n_words;
    return number + 1 <= known ? number + 1 : std::max(number, static_cast<int>(a.n_homophones)) + 1;
}

Arc Lexicon::arc(int node, int child, int token, int number) const {
    return has_separator() ? separated(node, child, token, number) : open(node, child, token, number);
}

Arc Lexicon::separated(int node, int child, int token, int number) const {
    if (token != a.separator) {
        if (number > 0) return {-1, 0};
        return {child < 0 && a.unknown >= 0 ? kUnknownNode : child, 0};
    }
    if (node == kRoot) return {-1, 0};  // there is nothing to end
    if (number < nodes[node].n_words) return {kRoot, a.words[nodes[node].first_word + number] + 1};
    if (number == 0 && a.unknown >= 0) return {kRoot, a.unknown + 1};
    return {-1, 0};
}

// Arcs go on inside a word, to its ends, inside an unknown word, and to its end.
Arc Lexicon::open(int node, int child, int token, int number) const {
    if (number > a.n_homophones) {
        if (node > kUnknownNode || !(node == kRoot ? a.may_begin : a.may_go_on)[token]) return {-1, 0};
        // The inside of an unknown word has a mark of its own, to distinguish it from that of a known one.
        return number == a.n_homophones + 1 ? Arc{kUnknownNode, a.unknown + 2} : Arc{kRoot, a.unknown + 1};
    }
    if (child < 0) return {-1, 0};
    if (number == 0) return {nodes[child].first < nodes[child + 1].first ? child : -1, 0};
    if (number > nodes[child].n_words) return {-1, 0};
    return {kRoot, a.words[nodes[child].first_word + number - 1] + 1};
}

int64_t Lexicon::ending(int node, int number) const {
    if (node == kRoot) return number == 0 ? 0 : -1;
    if (!has_separator()) return -1;
    const Arc arc = separated(node, -1, static_cast<int>(a.separator), number);
    return arc.node < 0 ? -1 : arc.mark;
}

Scorer::Scorer(int n_tokens, const LexiconArrays* lexicon_arrays, const ModelArrays* words, int n_word_models,
               const ModelArrays* tokens, int n_token_models)
    : n_tokens_(n_tokens), words_(words, words + n_word_models), tokens_(tokens, tokens + n_token_models) {
    std::vector<float> most(n_tokens, 0.0f);
    for (const Model& model : tokens_) model.add_bounds(most.data(), n_tokens);
    bound_ = *std::max_element(most.begin(), most.end()) + kRounding;
    if (!lexicon_arrays) return;
    lexicon = std::make_unique<Lexicon>(*lexicon_arrays, n_tokens);
    words_most_.assign(lexicon->a.word_scores, lexicon->a.word_scores + lexicon->a.n_words);
    for (const Model& model : words_) model.add_bounds(words_most_.data(), static_cast<int>(words_most_.size()));
    lexicon->bound_endings(words_most_);
}

float Scorer::score_word(const int64_t* state, int64_t mark, int64_t* after) const {
    if (!is_word(mark)) {
        std::copy_n(state, words_.size(), after);
        return 0.0f;
    }
    float score = lexicon->a.word_scores[mark - 1];
    for (size_t i = 0; i < words_.size(); ++i) {
        const Step step = words_[i].follow(state[i], static_cast<int>(mark - 1));
        after[i] = step.state;
        score += step.score;
    }
    return score;
}

float Scorer::score(const int64_t* state, int token, Arc arc, int64_t* after) const {
    float score = 0.0f;
    if (lexicon) {
        const float ahead = lexicon->nodes[arc.node].ahead - lexicon->nodes[state[0]].ahead;
        after[0] = arc.node;
        score = score_word(state + 1, arc.mark, after + 1) + ahead;
    }
    float of_tokens = 0.0f;
    for (size_t i = 0, at = first_token_model(); i < tokens_.size(); ++i, ++at) {
        const Step step = tokens_[i].follow(state[at], token);
        after[at] = step.state;
        of_tokens += step.score;
    }
    return score + of_tokens;
}

float Scorer::most(const int64_t* state, Arc arc) const {
    if (!lexicon) return bound_;
    const float ahead = lexicon->nodes[arc.node].ahead - lexicon->nodes[state[0]].ahead;
    return bound_ + ahead + (is_word(arc.mark) ? words_most_[arc.mark - 1] : 0.0f);
}

float Scorer::most_inside(const int64_t* state) const {
    if (!lexicon) return bound_;
    return lexicon->has_separator() ? bound_ + lexicon->nodes[state[0]].inside : most_of_any(state);
}

float Scorer::most_of_any(const int64_t* state) const {
    if (!lexicon) return bound_;
    const Lexicon::Node& node = lexicon->nodes[state[0]];
    return bound_ + std::max(node.inside, node.ending);
}

void Scorer::end(const int64_t* state, float* scores, int64_t* marks) const {
    float gained = lexicon ? -lexicon->nodes[state[0]].ahead : 0.0f;
    for (size_t i = 0; i < tokens_.size(); ++i) gained += tokens_[i].end(state[first_token_model() + i]);
    std::vector<int64_t> after(words_.size());
    for (int way = 0; way < n_endings(); ++way) {
        const int64_t mark = lexicon ? lexicon->ending(static_cast<int>(state[0]), way) : 0;
        scores[way] = kNever;
        marks[way] = std::max<int64_t>(mark, 0);
        if (mark < 0) continue;
        scores[way] = gained;
        if (!lexicon) continue;
        scores[way] += score_word(state + 1, mark, after.data());
        float of_ends = 0.0f;
        for (size_t i = 0; i < words_.size(); ++i) of_ends += words_[i].end(after[i]);
        scores[way] += of_ends;
    }
}

namespace {

// The places of the `most` best scores, best first, equal ones in their order; in their order if all stay.
std::vector<int> best_of(const std::vector<float>& scores, int most, bool sorted) {
    std::vector<int> places(scores.size());
    std::iota(places.begin(), places.end(), 0);
    if (!sorted && static_cast<int>(places.size()) <= most) return places;
    std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return scores[a] > scores[b]; });
    if (static_cast<int>(places.size()) > most) places.resize(most);
    return places;
}

}  // namespace

void Scorer::expand(const int64_t* labels, int n, const int64_t* start, int most, int64_t stride, float* scores,
                    int64_t* symbols, int64_t* marks) const {
    const int width = n_states();
    std::vector<float> score{0.0f};
    std::vector<int64_t> states(start, start + width);
    struct Link {
        int source;
        int64_t symbol;
    };
    std::vector<std::vector<Link>> links(n);  // of each place: the kept sequences
    for (int place = 0; place < n; ++place) {
        const int token = static_cast<int>(labels[place]);
        std::vector<float> candidates;
        std::vector<Link> ways;
        std::vector<int64_t> after, moved(width);
        for (int row = 0; row < static_cast<int>(score.size()); ++row) {
            const int64_t* state = states.data() + static_cast<size_t>(row) * width;
            const int child_node = child(state, token);
            for (int number = 0; number < n_arcs(); number = next(number, child_node, token)) {
                const Arc found = arc(state, child_node, token, number);
                if (found.node < 0) continue;
                const float total = score[row] + this->score(state, token, found, moved.data());
                if (total == kNever) continue;
                candidates.push_back(total);
                ways.push_back({row, token + n_tokens_ * found.mark});
                after.insert(after.end(), moved.begin(), moved.end());
            }
        }
        score.clear();
        states.clear();
        for (const int chosen : best_of(candidates, most, false)) {
            score.push_back(candidates[chosen]);
            links[place].push_back(ways[chosen]);
            const auto from = after.begin() + static_cast<ptrdiff_t>(chosen) * width;
            states.insert(states.end(), from, from + width);
        }
    }
    const int n_ways = n_endings();
    std::vector<float> totals(score.size() * n_ways);
    std::vector<int64_t> of_ends(totals.size());
    for (size_t row = 0; row < score.size(); ++row) {
        end(states.data() + row * width, totals.data() + row * n_ways, of_ends.data() + row * n_ways);
        for (int way = 0; way < n_ways; ++way) totals[row * n_ways + way] += score[row];
    }
    std::fill_n(scores, most, kNever);
    int rank = 0;
    for (const int chosen : best_of(totals, most, true)) {
        if (totals[chosen] == kNever) break;
        scores[rank] = totals[chosen];
        marks[rank] = of_ends[chosen];
        for (int place = n - 1, row = chosen / n_ways; place >= 0; --place) {
            symbols[rank * stride + place] = links[place][row].symbol;
            row = links[place][row].source;
        }
        ++rank;
    }
}

}  // namespace sottovoce::ctc
