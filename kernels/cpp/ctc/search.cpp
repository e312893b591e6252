#include "search.h"

#include <algorithm>
#include <cmath>

namespace sottovoce::ctc {

namespace {

// log(1 + exp(-x)) as cubics by powers of the place in a piece, that meet in value and slope; the error is below 1e-8.
class SoftPlus {
public:
    static constexpr int kLargest = 18, kPerNat = 16;  // nats beyond which a sum is its larger part; pieces a nat

    SoftPlus() {
        for (int i = 0; i < kPieces; ++i) {
            const double value = at(i), slope = slope_at(i), rise = at(i + 1) - value, next = slope_at(i + 1);
            const double coefficients[4] = {value, slope, 3 * rise - 2 * slope - next, slope + next - 2 * rise};
            for (int power = 0; power < 4; ++power) cubics_[i][power] = static_cast<float>(coefficients[power]);
        }
    }
    float operator()(float x) const {
        const float place = x * kPerNat;
        const unsigned piece = static_cast<unsigned>(place);
        const float way = place - static_cast<float>(piece);
        const float* c = cubics_[piece];
        return c[0] + way * (c[1] + way * (c[2] + way * c[3]));
    }

private:
    static constexpr int kPieces = kLargest * kPerNat + 1;  // one more, as differences are rounded
    float cubics_[kPieces][4];

    static double at(int knot) { return std::log1p(std::exp(-static_cast<double>(knot) / kPerNat)); }
    static double slope_at(int knot) { return -1 / (1 + std::exp(static_cast<double>(knot) / kPerNat)) / kPerNat; }
};

const SoftPlus soft_plus;

}  // namespace

float log_add(float a, float b) {
    const float high = a > b ? a : b, low = a > b ? b : a;
    if (!(low > high - SoftPlus::kLargest)) return high;  // also if both are -inf
    return high + soft_plus(high - low);
}

int Tree::add(int node, int64_t symbol) {
    for (int child = nodes[node].child; child >= 0; child = nodes[child].sibling)
        if (nodes[child].symbol == symbol) return child;
    const int made = static_cast<int>(nodes.size());
    nodes.push_back({symbol, node, -1, nodes[node].child, -1});
    nodes[node].child = made;
    return made;
}

Search::Search(const SearchSettings& settings, const Scorer& scorer)
    : settings_(settings), scorer_(scorer), n_states_(scorer.n_states()),
      states_(settings.beam_size * n_states_), next_states_(states_.size()), after_(n_states_),
      candidates_(static_cast<int>(settings.beam_size)) {
    beams_.reserve(settings.beam_size);
    next_.reserve(settings.beam_size);
}

void Search::run(const BeamArrays& beams, int64_t row, const float* frames, int64_t n_frames) {
    load(beams, row);
    for (int64_t t = 0; t < n_frames; ++t) {
        const float* frame = frames + t * settings_.n_labels;
        candidates_.clear(settings_.threshold);
        stay(frame);
        extend(frame);
        choose();
    }
    store(beams, row);
}

void Search::set_bounds(Beam& beam, const int64_t* state) {
    beam.most_inside = scorer_.most_inside(state);
    beam.most = scorer_.most_of_any(state);
}

// Read the living beams, and their histories into the trees.
void Search::load(const BeamArrays& from, int64_t row) {
    prefixes_.clear();
    spellings_.clear();
    beams_.clear();
    for (int64_t k = 0; k < settings_.beam_size; ++k) {
        const int64_t at = row * settings_.beam_size + k;
        if (from.blank[at] == kNever && from.token[at] == kNever) continue;
        Beam beam{};
        beam.blank = from.blank[at];
        beam.token = from.token[at];
        beam.lm = from.lm[at];
        beam.adjustment = from.adjustment[at];
        beam.merged = from.merged[at];
        beam.length = static_cast<int>(from.length[at]);
        beam.last = from.last[at];
        beam.last_token = static_cast<int>(beam.last % settings_.n_labels);
        beam.total = log_add(beam.blank, beam.token);
        const int64_t* symbols = from.symbols + at * from.n_symbols;
        for (int i = 1; i <= beam.length; ++i) {
            beam.node = prefixes_.add(beam.node, symbols[i]);
            if (merges()) beam.spelling = spellings_.add(beam.spelling, symbols[i] % settings_.n_labels);
        }
        const int slot = static_cast<int>(beams_.size());
        prefixes_.nodes[beam.node].slot = slot;
        int64_t* state = states_.data() + static_cast<size_t>(slot) * n_states_;
        std::copy_n(from.scores + at * n_states_, n_states_, state);
        set_bounds(beam, state);
        beams_.push_back(beam);
    }
}

// Write the beams back; those that are missing are dead.
void Search::store(const BeamArrays& to, int64_t row) {
    const int64_t n_beams = settings_.beam_size, count = static_cast<int64_t>(beams_.size());
    Beam dead{};
    dead.blank = dead.token = kNever;
    dead.last = settings_.initial_symbol;
    for (int64_t k = 0; k < n_beams; ++k) {
        const Beam& beam = k < count ? beams_[k] : dead;
        const int64_t at = row * n_beams + k;
        to.blank[at] = beam.blank;
        to.token[at] = beam.token;
        to.lm[at] = beam.lm;
        to.adjustment[at] = beam.adjustment;
        to.merged[at] = beam.merged;
        to.length[at] = beam.length;
        to.last[at] = beam.last;
        if (k < count) std::copy_n(state_of(static_cast<int>(k)), n_states_, to.scores + at * n_states_);
        int64_t* history = to.histories + at * to.n_histories;
        std::fill(history + beam.length + 1, history + to.n_histories, int64_t{-1});
        history[0] = to.symbols[at * to.n_symbols];
        for (int i = beam.length, node = beam.node; i > 0; --i, node = prefixes_.nodes[node].parent)
            history[i] = prefixes_.nodes[node].symbol;
    }
}

// Offer the beams that append nothing: by a blank, their last token, or from the beam that is one symbol shorter.
void Search::stay(const float* frame) {
    const int count = static_cast<int>(beams_.size());
    for (Beam& beam : beams_) beam.child = -1;
    for (int k = 0; k < count; ++k) {
        Beam& beam = beams_[k];
        const float log_prob = frame[beam.last_token];
        // A separator that is repeated after a blank appends nothing.
        float token = (beam.last_token == scorer_.separator() ? beam.total : beam.token) + log_prob;
        beam.parent = beam.node ? prefixes_.nodes[prefixes_.nodes[beam.node].parent].slot : -1;
        if (beam.parent >= 0) {
            Beam& parent = beams_[beam.parent];
            beam.next = parent.child;
            parent.child = k;
            // The parent's last token followed by the same token is a new one only after a blank.
            const float reach = parent.last_token == beam.last_token ? parent.blank : parent.total;
            token = log_add(token, reach + log_prob);
        }
        beam.stay_blank = beam.total + frame[settings_.blank];
        beam.stay_token = token;
        beam.stay_total = log_add(beam.stay_blank, token);
        const float score = beam.stay_total + beam.lm;
        if (score > kNever) candidates_.offer({score, score, k, -1, 0});
    }
}

// Offer every extension that may be among the best, good beams and likely labels first.
void Search::extend(const float* frame) {
    float best = kNever;
    for (const Beam& beam : beams_) best = std::max(best, beam.total + beam.lm + beam.most);
    const auto least = [&] { return candidates_.limit() > kNever ? candidates_.limit() - best : kNever; };
    const int n_labels = static_cast<int>(settings_.n_labels), blank = static_cast<int>(settings_.blank);
    const int n_tokens = static_cast<int>(settings_.n_tokens), n_first = std::min(Labels::kFirst, n_tokens);
    labels_.find_likeliest(frame, n_labels, least(), blank, n_first);
    extend_all(true);
    if (static_cast<int>(labels_.found.size()) < n_first || n_first == n_tokens) return;
    labels_.find_others(frame, n_labels, least(), blank, n_tokens - n_first);
    extend_all(false);
}

void Search::extend_all(bool in_order) {
    const int64_t separator = scorer_.separator();
    for (int k = 0; k < static_cast<int>(beams_.size()); ++k) {
        const float before = beams_[k].total + beams_[k].lm, most = beams_[k].most, inside = beams_[k].most_inside;
        for (const Labels::Label& label : labels_.found) {
            const float score = before + label.log_prob;
            if (score + most <= candidates_.limit()) {
                if (in_order) break;
                continue;
            }
            if (label.id == separator || score + inside > candidates_.limit()) extend_by(k, label.id, label.log_prob);
        }
    }
}

// Offer the arcs of a token after a beam, except to prefixes that exist, which got their part.
void Search::extend_by(int k, int token, float log_prob) {
    const Beam& beam = beams_[k];
    const float acoustic = log_prob + (token == beam.last_token ? beam.blank : beam.total);
    if (acoustic == kNever) return;
    const float before = acoustic + beam.lm;
    const int64_t* state = state_of(k);
    const int child = scorer_.child(state, token), n_arcs = scorer_.n_arcs();
    for (int number = 0; number < n_arcs; number = scorer_.next(number, child, token)) {
        const Arc arc = scorer_.arc(state, child, token, number);
        if (arc.node < 0 || before + scorer_.most(state, arc) <= candidates_.limit()) continue;
        const float score = before + scorer_.score(state, token, arc, after_.data());
        if (score <= candidates_.limit()) continue;
        const int64_t symbol = token + arc.mark * settings_.n_labels;
        int longer = beam.child;
        while (longer >= 0 && beams_[longer].last != symbol) longer = beams_[longer].next;
        if (longer < 0) candidates_.offer({score, acoustic, k, token, number});
    }
}

// Make the candidates the beams.
void Search::choose() {
    for (const Beam& beam : beams_) prefixes_.nodes[beam.node].slot = -1;
    next_.clear();
    const float least = candidates_.best() - settings_.threshold;
    for (const int64_t key : candidates_.sorted()) {
        const Candidate& chosen = candidates_.at(key);
        if (chosen.score < least) break;
        Beam beam = beams_[chosen.source];
        beam.score = chosen.score;
        beam.is_new = chosen.token >= 0;
        const int64_t* state = state_of(chosen.source);
        int64_t* state_after = next_states_.data() + next_.size() * n_states_;
        if (beam.is_new) {
            append(beam, chosen, state, state_after);
        } else {
            beam.blank = beam.stay_blank;
            beam.token = beam.stay_token;
            beam.total = beam.stay_total;
            std::copy_n(state, n_states_, state_after);
        }
        if (merges() && is_pruned(beam)) continue;
        prefixes_.nodes[beam.node].slot = static_cast<int>(next_.size());
        next_.push_back(beam);
    }
    beams_.swap(next_);
    states_.swap(next_states_);
}

void Search::append(Beam& beam, const Candidate& chosen, const int64_t* state, int64_t* state_after) {
    const int child = scorer_.child(state, chosen.token);
    const Arc arc = scorer_.arc(state, child, chosen.token, chosen.arc);
    beam.lm += scorer_.score(state, chosen.token, arc, state_after);
    beam.blank = kNever;
    beam.token = beam.total = chosen.acoustic;
    beam.length += 1;
    beam.last = chosen.token + arc.mark * settings_.n_labels;
    beam.last_token = chosen.token;
    beam.node = prefixes_.add(beam.node, beam.last);
    if (merges()) beam.spelling = spellings_.add(beam.spelling, chosen.token);
    set_bounds(beam, state_after);
}

// Whether a new beam, whose state follows those of the others, is behind `max_homophones` others with the same labels
// and state.
bool Search::is_pruned(const Beam& beam) {
    const int64_t* state = next_states_.data() + next_.size() * n_states_;
    int n_better = 0, first = -1;
    for (int k = 0; k < static_cast<int>(next_.size()); ++k) {
        const int64_t* other = next_states_.data() + static_cast<size_t>(k) * n_states_;
        if (next_[k].spelling != beam.spelling || !std::equal(state, state + n_states_, other)) continue;
        first = first < 0 ? k : first;
        ++n_better;
    }
    if (n_better < settings_.max_homophones) return false;
    // Pruned homophones are found again with every frame: they only count in a new group.
    Beam& best = next_[first];
    if (best.is_new && beam.is_new)
        best.merged = log_add(best.score + best.merged, beam.score + beam.merged) - best.score;
    return true;
}

}  // namespace sottovoce::ctc
