// Answers of former visits: the same folder answers the same question with the same bytes, so none is computed twice.

import { carried } from "./start.js";

const MAX_KEPT = 400;
const folder = globalThis.caches?.open(`kvcalc-answers-${carried.get("version")}`).catch(() => null);

export async function remembered(address) {
  return (await (await folder)?.match(address)) ?? null;
}

export async function remember(address, response) {
  if (!response.ok) return;
  const copy = response.clone(); // before anybody reads it
  const kept = await folder;
  if (!kept) return;
  try {
    const [oldest, ...others] = await kept.keys();
    if (others.length >= MAX_KEPT) await kept.delete(oldest);
    await kept.put(address, copy);
  } catch {
    // a browser that is short of room keeps none
  }
}
