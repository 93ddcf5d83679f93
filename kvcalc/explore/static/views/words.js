// The words of the lessons, in English and Japanese: the same keys in both.

import { count, number, percent, seconds } from "../units.js";
import { CHARTS, COMMANDS, CONTROLS } from "./japanese.js";

const en = {
  step: "Step by step", all: "All of it", back: "Back", next: "Next", play: "Play", pause: "Pause", place: "Step", yes: "yes", no: "no",
  names: { memory: "Why decode waits for memory", "kv-cache": "The KV cache", paging: "Blocks and sharing", batching: "Batching", speculate: "Draft and verify", drift: "Drift" },
  memory: {
    told: "To make one token, a GPU reads every weight, and the cache, once. It multiplies little with them: two operations for a weight. Memory is the slow side, so that more sequences in a step come almost free, until the multiplications take as long as the reads: the ridge.",
    bytes: "Bytes of a step", flop: "FLOP of a step", ridge: "Limit turns to compute", never: "never at this context",
    bytesTold: "Weights and cache that one step reads, for one sequence.", flopTold: "Multiplications and additions of the same step.",
    ridgeTold: "The smallest batch at which the multiplications take longer than the reads. A long context never gets there: each sequence brings its own cache to read.",
    reads: "reads", multiplies: "multiplies", at: (row) => `${count(row.batch)} ${row.batch === 1 ? "sequence" : "sequences"} in a step: ${count(row.batch)} ${row.batch === 1 ? "token" : "tokens"} in ${seconds(row.ideal_s)}, at most ${number(row.tokens_per_s)} tokens/s.`,
    idle: (share, limiter) => (limiter === "memory" ? `The multipliers work ${percent(share)} of the time and wait for memory in the rest.` : `The memory works ${percent(share)} of the time and waits for the multipliers in the rest.`),
  },
  "kv-cache": {
    told: "Without a cache each new token computes the keys and values of all tokens before it again. With a cache it computes its own and reads the others. The tokens are the same.",
    without: "Projections without a cache", with: "with one", same: "Same tokens", bytes: "Cache at the end",
    withoutTold: "Tokens whose keys and values are computed in each layer, over all passes, when nothing is kept.", withTold: "The same when they are kept: the prompt once, then one for each token that is fed back.",
    sameTold: "Whether both runs chose the same tokens, each computed on its own.", bytesTold: "The bytes of the arrays of keys and values after the last pass.",
    at: (step, report) => `Token ${step.place} of ${report.output_tokens} (${step.phase}): it is number ${step.tokens.join(", ")} of the vocabulary.`,
    laneWithout: "without", laneWith: "with", read: "read from the cache", computed: "computed", counts: (computed, read) => `${computed} computed${read === null ? "" : `, ${read} read`}`,
  },
  paging: {
    told: "Memory set aside for the longest request stays mostly empty. In blocks it goes to tokens that exist; a prefix can be shared, and is copied when one of its owners writes.",
    reserved: "Requests at once, set aside", paged: "in blocks", more: "More requests", holds: (share) => `${percent(share)} of memory holds tokens`,
    reservedTold: "Requests in memory, mean over the run, where each is given the room of the longest.", pagedTold: "Requests in memory, mean over the run, where each is given blocks as its tokens come.",
    moreTold: "Requests at once in blocks, over those at once with memory set aside.",
    at: (step, place) => `${place + 1}. ${step.what}`, sequence: (place) => `sequence ${place}`, shared: "shared", own: "its own",
    owners: (step) => `${step.blocks} blocks have an owner; without sharing it would be ${step.unshared_blocks}.`,
  },
  batching: {
    told: "Answers differ in length. A static batch holds every slot until its longest answer is done. With continuous batching a free slot takes the next request in the next step; and since a step reads the weights once for all slots, the same memory traffic makes more tokens.",
    static: "Steps, static batching", continuous: "Steps, continuous batching", faster: "Speed-up", used: (share) => `${percent(share)} of slots in use`,
    staticTold: "Steps until all answers are done, where a batch ends with its longest answer.", continuousTold: "Steps where a waiting request takes a slot as soon as one is free.", fasterTold: "The first number of steps over the second.",
    at: (step) => `Step ${step.place + 1}: numbers are requests; an empty slot does no work.`, kept: "static", given: "continuous", empty: "empty", request: (place) => `request ${place}`,
  },
  speculate: {
    told: "A draft proposes tokens and the target checks them in one pass. It keeps those that it would have chosen, and adds one of its own. Whatever the draft, the text is the target's.",
    draft: (name) => `${name} draft`, passes: (passes) => `${count(passes)} passes`, passesTold: "Passes of the target that the text took: each checks one draft and adds one token of its own.",
    gained: (draft) => `${number(draft.mean_tokens_per_pass)} tokens a pass, ${draft.same_output ? "same text" : "other text"}`,
    at: (step) => `${step.draft} draft, pass ${step.place}: ${step.accepted.length} of ${step.drafted.length} accepted, then the target's ${step.ending}.`,
    drafted: "drafted", taken: "taken", accepted: "accepted", rejected: "rejected", fromDraft: "from the draft", own: "the target's own",
  },
  drift: {
    told: "A generator that feeds on its own states drifts from the truth. A consistency loss in training makes it drift less.",
    error: "Error at the end", consistent: "with a consistency loss", less: "Less by",
    errorTold: "The error after the last step of a generator that is fed its own states.", consistentTold: "The same where the consistency loss was trained with.", lessTold: "The first error over the second.",
    at: (step) => `After ${step.place} ${step.place === 1 ? "step" : "steps"}: error ${number(step.free_running_error)} running free, ${number(step.teacher_forced_error)} from true states; with the consistency loss ${number(step.free_running_error_consistent)}.`,
  },
};

const ja = {
  step: "一歩ずつ", all: "全体", back: "戻る", next: "次へ", play: "再生", pause: "停止", place: "ステップ", yes: "はい", no: "いいえ",
  names: { memory: "デコードがメモリを待つ理由", "kv-cache": "KVキャッシュ", paging: "ブロックと共有", batching: "バッチ処理", speculate: "下書きと検証", drift: "ドリフト" },
  memory: {
    told: "1トークンを作るたびに、GPUはすべての重みとキャッシュを1回ずつ読みます。計算は重み1つにつき2回だけです。遅いのはメモリなので、1ステップにまとめる系列を増やしても、計算時間が読み出し時間に追いつく点(リッジ)までは、ほとんど時間が増えません。",
    bytes: "1ステップで読むバイト数", flop: "1ステップの演算数", ridge: "計算が律速になるバッチ", never: "この文脈長では来ない",
    bytesTold: "系列が1つのとき、1ステップで読む重みとキャッシュ。", flopTold: "同じステップの積和演算の数。",
    ridgeTold: "計算時間が読み出し時間を超える最小のバッチ。文脈が長いと、系列ごとに自分のキャッシュを読むため、この点には届きません。",
    reads: "読み出し", multiplies: "計算", at: (row) => `1ステップに${count(row.batch)}系列: ${seconds(row.ideal_s)}で${count(row.batch)}トークン、最大で毎秒${number(row.tokens_per_s)}トークン。`,
    idle: (share, limiter) => (limiter === "memory" ? `演算器が働くのは時間の${percent(share)}で、残りはメモリを待っています。` : `メモリが働くのは時間の${percent(share)}で、残りは演算器を待っています。`),
  },
  "kv-cache": {
    told: "キャッシュがないと、新しいトークンのたびに、それまでの全トークンのキーと値を計算し直します。キャッシュがあれば、自分の分だけを計算し、残りは読むだけです。出てくるトークンは同じです。",
    without: "キャッシュなしの射影", with: "キャッシュあり", same: "同じトークンか", bytes: "最後のキャッシュ",
    withoutTold: "何も残さない場合に、各層でキーと値を計算するトークンの数(全パスの合計)。", withTold: "残す場合の同じ数。プロンプトが1回、その後は入力されるトークンごとに1つ。",
    sameTold: "別々に計算した2つの実行が、同じトークンを選んだか。", bytesTold: "最後のパスの後の、キーと値の配列のバイト数。",
    at: (step, report) => `${report.output_tokens}トークン中の${step.place}番目 (${step.phase === "prefill" ? "プレフィル" : "デコード"}): 語彙の${step.tokens.join(", ")}番。`,
    laneWithout: "なし", laneWith: "あり", read: "キャッシュから読む", computed: "計算する", counts: (computed, read) => `${computed}個を計算${read === null ? "" : `、${read}個を読む`}`,
  },
  paging: {
    told: "最長の要求に合わせて確保したメモリは、ほとんど空のままです。ブロックに分ければ、実際にあるトークンだけが場所を取ります。先頭部分は共有でき、持ち主の1人が書き込むときにコピーされます。",
    reserved: "同時の要求数(最長を確保)", paged: "ブロック", more: "要求数の倍率", holds: (share) => `メモリの${percent(share)}がトークン`,
    reservedTold: "各要求に最長の場所を与えた場合に、メモリにある要求の平均数。", pagedTold: "トークンが増えるたびにブロックを与えた場合の平均数。", moreTold: "ブロックでの同時要求数を、確保した場合の数で割ったもの。",
    at: (step, place) => `${place + 1}. ${step.what}`, sequence: (place) => `系列 ${place}`, shared: "共有", own: "専有",
    owners: (step) => `持ち主のあるブロックは${step.blocks}個。共有しなければ${step.unshared_blocks}個。`,
  },
  batching: {
    told: "応答の長さはまちまちです。固定バッチでは、最長の応答が終わるまで全員が席を保ちます。空いた席をすぐ次に渡せば、次のステップから働きます。1ステップで重みを読むのは1回なので、同じ読み出し量でより多くのトークンができます。",
    static: "ステップ数(固定バッチ)", continuous: "席をすぐ渡す", faster: "速さの倍率", used: (share) => `席の${percent(share)}が使用中`,
    staticTold: "最長の応答とともにバッチが終わる場合の、全応答が終わるまでのステップ数。", continuousTold: "空いた席に待っている要求がすぐ入る場合のステップ数。", fasterTold: "前者のステップ数を後者で割ったもの。",
    at: (step) => `ステップ ${step.place + 1}: 数字は要求の番号、空いた席は待っています。`, kept: "固定", given: "すぐ渡す", empty: "空き", request: (place) => `要求 ${place}`,
  },
  speculate: {
    told: "下書きがトークンを提案し、本体が1回のパスで確かめます。自分でも選んだはずのものを残し、1つを自分で足します。下書きが何であっても、文章は本体のものです。",
    draft: (name) => `下書き (${{ perfect: "完全", half: "半分", poor: "不良" }[name] ?? name})`, passes: (passes) => `${count(passes)}パス`, passesTold: "文章にかかった本体のパス数。1パスで1つの下書きを確かめ、1トークンを足します。",
    gained: (draft) => `1パスで${number(draft.mean_tokens_per_pass)}トークン、${draft.same_output ? "文章は同じ" : "文章が違う"}`,
    at: (step) => `下書き (${{ perfect: "完全", half: "半分", poor: "不良" }[step.draft] ?? step.draft})、パス${step.place}: ${step.drafted.length}個中${step.accepted.length}個を採用し、本体が1つ足す。`,
    drafted: "下書き", taken: "採用", accepted: "採用", rejected: "不採用", fromDraft: "下書きから", own: "本体のもの",
  },
  drift: {
    told: "自分の状態を入力し続ける生成器は、真の値からずれていきます。学習時に一貫性の損失を加えると、ずれが小さくなります。",
    error: "最後の誤差", consistent: "一貫性の損失あり", less: "縮小の倍率",
    errorTold: "自分の状態を入力する生成器の、最後のステップ後の誤差。", consistentTold: "一貫性の損失を加えて学習した場合の同じ誤差。", lessTold: "前者の誤差を後者で割ったもの。",
    at: (step) => `${step.place}ステップ後: 自走の誤差 ${number(step.free_running_error)}、真の状態からは ${number(step.teacher_forced_error)}、一貫性の損失ありで ${number(step.free_running_error_consistent)}。`,
  },
};

export const WORDS = { en, ja: { ...ja, controls: { ...CONTROLS, names: { demo: ja.names } }, charts: CHARTS, commands: COMMANDS } };
