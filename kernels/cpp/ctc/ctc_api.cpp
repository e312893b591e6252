// The CTC search for other languages; see ../api.cpp. Tokens and states are 64-bit integers.
#include <exception>
#include <mutex>

#include "../guarded.h"
#include "../pool.h"
#include "align.h"
#include "scorer.h"
#include "search.h"

using namespace sottovoce;
using namespace sottovoce::ctc;

namespace {

// Run work(first, last) on slices of n rows, and throw here what was thrown in one of the threads.
template <class Work>
int on_rows(int n, int n_threads, const Work& work) {
    return guarded([&] {
        std::mutex mutex;
        std::exception_ptr failure;
        run_together(n_threads, [&](Worker& worker) {
            worker.share(n, [&](int first, int last) {
                try {
                    work(first, last);
                } catch (...) {
                    std::lock_guard<std::mutex> lock(mutex);
                    failure = std::current_exception();
                }
            });
        });
        if (failure) std::rethrow_exception(failure);
        return 1;
    });
}

}  // namespace

// Emissions (n_rows, n_frames, n_labels), of which lengths (n_rows,) frames count.
struct sv_ctc_emissions {
    int64_t n_frames, n_labels;
    const float* values;
    const int64_t* lengths;

    Frames row(int64_t i) const { return {values + i * n_frames * n_labels, lengths[i], n_labels}; }
};

// Texts (n, stride), of which n_tokens (n,) count, of emissions rows (n,), with blanks (n, stride + 1) around them.
struct sv_ctc_texts {
    int64_t n, stride;
    const int64_t *tokens, *n_tokens, *rows, *blanks;

    Text text(int64_t i) const {
        return {tokens + i * stride, blanks + i * (stride + 1), static_cast<int>(n_tokens[i])};
    }
};

SV_API Scorer* sv_ctc_scorer_new(int n_tokens, const LexiconArrays* lexicon, const ModelArrays* words,
                                 int n_word_models, const ModelArrays* tokens, int n_token_models) {
    return guarded([&] { return new Scorer(n_tokens, lexicon, words, n_word_models, tokens, n_token_models); });
}
SV_API void sv_ctc_scorer_free(Scorer* scorer) { delete scorer; }
SV_API int sv_ctc_n_endings(const Scorer* scorer) { return scorer->n_endings(); }

SV_API int sv_ctc_search(const SearchSettings* settings, const Scorer* scorer, const BeamArrays* beams,
                         const sv_ctc_emissions* emissions, int n_rows, int n_threads) {
    return on_rows(n_rows, n_threads, [&](int first, int last) {
        Search search(*settings, *scorer);
        for (int row = first; row < last; ++row) {
            const Frames frames = emissions->row(row);
            search.run(*beams, row, frames.values, frames.n_frames);
        }
    });
}

// States (n, n_states) to scores and marks (n, n_endings).
SV_API int sv_ctc_end(const Scorer* scorer, const int64_t* states, int n, float* scores, int64_t* marks) {
    return on_rows(n, 1, [&](int first, int last) {
        const int64_t n_states = scorer->n_states(), n_endings = scorer->n_endings();
        for (int64_t i = first; i < last; ++i)
            scorer->end(states + i * n_states, scores + i * n_endings, marks + i * n_endings);
    });
}

// The `most` best word sequences of each text from a start state: scores and marks (n, most), symbols (n, most, stride).
SV_API int sv_ctc_expand(const Scorer* scorer, const int64_t* start, const sv_ctc_texts* texts, int most,
                         float* scores, int64_t* symbols, int64_t* marks, int n_threads) {
    return on_rows(static_cast<int>(texts->n), n_threads, [&](int first, int last) {
        for (int64_t i = first; i < last; ++i) {
            const int64_t at = i * most, n = texts->n_tokens[i];
            scorer->expand(texts->tokens + i * texts->stride, static_cast<int>(n), start, most, texts->stride,
                           scores + at, symbols + at * texts->stride, marks + at);
        }
    });
}

// 1: all are log-probabilities; 0: in doubt.
SV_API int sv_ctc_are_plausible(const sv_ctc_emissions* emissions, int n_rows) {
    for (int row = 0; row < n_rows; ++row)
        if (!are_plausible(emissions->row(row))) return 0;
    return 1;
}

// First and last frame and highest log-probability (n, stride) of every token, and the score (n,) of the path.
SV_API int sv_ctc_align(const sv_ctc_emissions* emissions, const sv_ctc_texts* texts, int64_t* first_frame,
                        int64_t* last_frame, float* peak, float* score, int n_threads) {
    return on_rows(static_cast<int>(texts->n), n_threads, [&](int first, int last) {
        Paths paths;
        for (int64_t i = first; i < last; ++i) {
            const int64_t at = i * texts->stride;
            score[i] = align(emissions->row(texts->rows[i]), texts->text(i), paths, first_frame + at, last_frame + at,
                             peak + at);
        }
    });
}

// Where the paths of all texts meet in the one utterance of the emissions: the frames and tokens before it.
SV_API int sv_ctc_common_cut(const sv_ctc_emissions* emissions, const sv_ctc_texts* texts, int64_t n_shared,
                             float margin, int is_late, int64_t* cut) {
    return guarded([&] {
        std::vector<Text> all;
        for (int64_t i = 0; i < texts->n; ++i) all.push_back(texts->text(i));
        const Cut found = common_cut(emissions->row(0), all, n_shared, margin, is_late != 0);
        cut[0] = found.n_frames;
        cut[1] = found.n_tokens;
        return 1;
    });
}

// The labels of a frame as the search finds them, for tests: the `most` likeliest above `least`, then at most n_others
// further ones. Returns how many there are of both.
SV_API int sv_ctc_labels(const float* frame, int n, float least, int blank, int most, int n_others, int64_t* ids) {
    Labels labels;
    labels.find_likeliest(frame, n, least, blank, most);
    int count = 0;
    for (const Labels::Label& label : labels.found) ids[count++] = label.id;
    if (count < most) return count;
    labels.find_others(frame, n, least, blank, n_others);
    for (const Labels::Label& label : labels.found) ids[count++] = label.id;
    return count;
}
SV_API float sv_ctc_log_add(float a, float b) { return log_add(a, b); }
