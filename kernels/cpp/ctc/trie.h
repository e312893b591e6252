// N-gram models of packed bits (`sottovoce.lm.trie` describes the layout), read in place: nothing is copied, and the
// arrays must stay where they are. States are numbers of nodes: 0 the root, then the unigrams, then order by order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sottovoce::ctc {

// The n records of one order. start: the node of the first one. bits: of a word, a log-probability, a back-off, a link and
// the low part of a place. weights, backoffs: codebooks, or null.
struct TrieRecords {
    int64_t start, n;
    const int32_t* words;
    const int64_t* high;
    int64_t n_high;
    const float* weights;
    const float* backoffs;
    int64_t bits[5];

    int64_t total() const { return bits[0] + bits[1] + bits[2] + bits[3] + bits[4]; }
};

class Trie {
public:
    int64_t order, n_words, end_word;  // end_word -1: the model has no word for the end
    const float* root_weights;
    const float* root_backoff;
    const int64_t* root_first;
    const float* bounds;
    const TrieRecords* records;  // (order - 1,) of orders 2, 3, …

    // The log-probability of a word after a state, back-off included, and the next state.
    float follow(uint64_t state, uint32_t word, uint64_t& next) const {
        float score = 0.0f;
        bool is_scored = false;
        for (int64_t level = level_of(state); level >= 0; level = level_of(state)) {
            const int64_t place = static_cast<int64_t>(state) - start(level);
            const TrieRecords& below = records[level];
            int64_t low, high;
            children(level, place, low, high);
            const int64_t child = find(below, low, high, word);
            if (child >= 0) {
                if (!is_scored) score += value(below, child, bit(below, 1), below.bits[1], below.weights);
                is_scored = true;
                if (level + 2 < order) {
                    next = static_cast<uint64_t>(below.start + child);
                    return score;
                }
            } else if (!is_scored) {
                score += level ? backoff(records[level - 1], place) : root_backoff[place];
            }
            state = level ? link(records[level - 1], place) : 0;
        }
        next = order > 1 ? word + 1u : 0u;
        return is_scored ? score : score + root_weights[word];
    }

    // The log-probability of the end after a state; 0 for a model without one.
    float end(uint64_t state) const {
        uint64_t ignored;
        return end_word < 0 ? 0.0f : follow(state, static_cast<uint32_t>(end_word), ignored);
    }

private:
    static constexpr int64_t kFirstUnigram = 1;

    int64_t start(int64_t level) const { return level ? records[level - 1].start : kFirstUnigram; }

    // The words of a state's context less one; -1 for the root.
    int64_t level_of(uint64_t state) const {
        int64_t level = order - 2;
        while (level >= 0 && static_cast<int64_t>(state) < start(level)) --level;
        return level;
    }

    static int64_t bit(const TrieRecords& r, int field) {
        int64_t at = 0;
        for (int i = 0; i < field; ++i) at += r.bits[i];
        return at;
    }

    static uint64_t field(const TrieRecords& r, int64_t place, int64_t offset, int64_t width) {
        const uint64_t at = static_cast<uint64_t>(place * r.total() + offset);
        uint64_t around;
        std::memcpy(&around, r.words + (at >> 5), sizeof around);
        return around >> (at & 31) & ((uint64_t{1} << width) - 1);
    }

    static float value(const TrieRecords& r, int64_t place, int64_t offset, int64_t width, const float* book) {
        const uint32_t code = static_cast<uint32_t>(field(r, place, offset, width));
        if (book) return book[code];
        float found;
        std::memcpy(&found, &code, sizeof found);
        return found;
    }

    static float backoff(const TrieRecords& r, int64_t place) {
        return value(r, place, bit(r, 2), r.bits[2], r.backoffs);
    }

    static uint64_t link(const TrieRecords& r, int64_t place) {
        return r.bits[3] ? field(r, place, bit(r, 3), r.bits[3]) : field(r, place, 0, r.bits[0]) + 1;
    }

    // The places low to high of a context's children: its own, and that of the next context.
    void children(int64_t level, int64_t place, int64_t& low, int64_t& high) const {
        if (!level) {
            low = root_first[place];
            high = root_first[place + 1];
            return;
        }
        const TrieRecords& r = records[level - 1];
        const int64_t offset = bit(r, 4), width = r.bits[4];
        const int64_t* const end = r.high + r.n_high;
        const int64_t* at = last_up_to(r, place);
        low = (at - r.high) << width | static_cast<int64_t>(field(r, place, offset, width));
        if (at + 1 != end && at[1] <= place + 1) at = std::upper_bound(at + 1, end, place + 1) - 1;
        high = (at - r.high) << width | static_cast<int64_t>(field(r, place + 1, offset, width));
    }

    // The last of the ascending `high` that is not above a place. They rise evenly: it is near its share of them.
    static const int64_t* last_up_to(const TrieRecords& r, int64_t place) {
        const int64_t n_places = r.n;
        int64_t low = n_places ? static_cast<int64_t>(static_cast<double>(place) / n_places * (r.n_high - 1)) : 0;
        int64_t high = low, step = 1;
        for (; low > 0 && r.high[low] > place; step *= 2) low = std::max<int64_t>(low - step, 0);
        for (step = 1; high < r.n_high && r.high[high] <= place; step *= 2) high = std::min(high + step, r.n_high);
        return std::upper_bound(r.high + low, r.high + high, place) - 1;
    }

    static int64_t find(const TrieRecords& r, int64_t low, int64_t high, uint32_t word) {
        const int64_t end = high, width = r.bits[0], total = r.total();
        const uint64_t mask = (uint64_t{1} << width) - 1;
        const auto at = [&](int64_t place) {
            const uint64_t begin = static_cast<uint64_t>(place * total);
            uint64_t around;
            std::memcpy(&around, r.words + (begin >> 5), sizeof around);
            return around >> (begin & 31) & mask;
        };
        while (low < high) {
            const int64_t middle = (low + high) >> 1;
            if (at(middle) < word)
                low = middle + 1;
            else
                high = middle;
        }
        return low < end && at(low) == word ? low : -1;
    }
};

}  // namespace sottovoce::ctc
