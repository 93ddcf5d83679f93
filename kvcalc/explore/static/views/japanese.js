// What the lessons share with the other views, in Japanese: labels and hints of controls, and the fixed words of charts.

export const CONTROLS = {
  labels: {
    demo: "レッスン", language: "言語", model: "モデル", gpu: "アクセラレータ", "demo-context": "文脈長(トークン)", "demo-prompt": "プロンプトのトークン数",
    "demo-output": "生成するトークン数", "demo-gamma": "下書きのトークン数 (γ)", "demo-block": "1ブロックのトークン数", "demo-places": "バッチの席数",
    "demo-requests": "要求数", seed: "乱数の種",
  },
  hints: { model: "カタログ名かHugging FaceのID", gpu: "カタログ名か別名" },
  slider: "スライダー",
};

export const COMMANDS = { heading: "コマンドラインで同じ結果", copy: "コマンドをコピー", copied: "コピーしました", selected: "選択しました" };

// Sentences with numbers in them stay as the report has them.
export const CHARTS = {
  "Keys and values computed again for each token, or kept": "キーと値: トークンごとに計算し直すか、残すか",
  "with a cache": "キャッシュあり", without: "キャッシュなし", run: "実行", "tokens made": "生成したトークン数",
  "tokens projected to keys and values, in each layer": "各層でキーと値を計算したトークン数",
  "Speculation: the passes change, the output does not": "投機的デコード: パス数は変わり、出力は変わらない",
  draft: "下書き", "passes of the target": "本体のパス数", half: "半分", none: "なし", perfect: "完全", poor: "不良",
  "The same requests with their longest length set aside, and in blocks": "同じ要求を、最長の長さで確保した場合とブロックの場合",
  "decode steps": "デコードのステップ", memory: "メモリ", "tokens of memory": "メモリのトークン数",
  "paged: set aside": "ブロック: 確保", "paged: used": "ブロック: 使用", "reserved: set aside": "最長を確保: 確保", "reserved: used": "最長を確保: 使用",
  "Places in use, kept for a batch and given on": "使用中の席: 固定バッチと、すぐ渡す場合",
  "given on": "すぐ渡す", "kept for a batch": "固定バッチ", places: "席", "places in use": "使用中の席", steps: "ステップ",
  "Drift of a generator that feeds on its own states": "自分の状態を入力する生成器のドリフト",
  "distance from the truth (the cycle has radius 1)": "真の値からの距離(円の半径は1)", "steps since the last true state": "最後の真の状態からのステップ数",
  generator: "生成器", "free-running": "自走", "free-running, consistency loss": "自走、一貫性の損失あり",
  "teacher-forced": "真の状態から", "teacher-forced, consistency loss": "真の状態から、一貫性の損失あり",
  "arithmetic intensity, FLOP/B": "演算強度 (FLOP/B)", "attainable FLOP/s": "到達できるFLOP/s", "dense peak": "密行列の最大性能", pass: "パス", decode: "デコード",
};
