// Word diff: the shortest edit between two lists of words (Myers 1986), bounded; beyond the bound, common ends only.
export type Piece = { text: string; same: boolean };
const MAX_EDITS = 1200;

export function words(text: string): string[] {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
}

export function wordDiff(left: string, right: string): [Piece[], Piece[]] {
  const a = words(left), b = words(right);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const same = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const marks: [boolean[], boolean[]] = [new Array(a.length).fill(false), new Array(b.length).fill(false)];
  for (let at = 0; at < start; at++) marks[0][at] = marks[1][at] = true;
  for (let at = 1; at <= end; at++) marks[0][a.length - at] = marks[1][b.length - at] = true;
  for (const [x, y] of same) marks[0][start + x] = marks[1][start + y] = true;
  return [join(a, marks[0]), join(b, marks[1])];
}

function join(list: string[], marks: boolean[]): Piece[] {
  const pieces: Piece[] = [];
  list.forEach((word, at) => {
    const last = pieces[pieces.length - 1];
    if (last && last.same === marks[at]) last.text += word;
    else pieces.push({ text: word, same: marks[at] });
  });
  return pieces;
}

// Positions of words that both have, in order.
function edits(a: string[], b: string[]): [number, number][] {
  if (!a.length || !b.length) return [];
  const most = Math.min(MAX_EDITS, a.length + b.length);
  const trace: Int32Array[] = [];
  let reach = new Int32Array(2 * most + 3);
  for (let depth = 0; depth <= most; depth++) {
    trace.push(reach.slice());
    for (let k = -depth; k <= depth; k += 2) {
      const down = k === -depth || (k !== depth && reach[most + k] < reach[most + k + 2]);
      let x = down ? reach[most + k + 2] : reach[most + k] + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) { x++; y++; }
      reach[most + k + 1] = x;
      if (x >= a.length && y >= b.length) return walk(trace, depth, most, a.length, b.length);
    }
  }
  return [];
}

function walk(trace: Int32Array[], depth: number, most: number, x: number, y: number): [number, number][] {
  const pairs: [number, number][] = [];
  for (let d = depth; d > 0; d--) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && reach[most + k] < reach[most + k + 2]);
    const before = down ? k + 1 : k - 1;
    const px = reach[most + before + 1], py = px - before;
    const sx = down ? px : px + 1, sy = down ? py + 1 : py;
    while (x > sx && y > sy) { x--; y--; pairs.push([x, y]); }
    x = px; y = py;
  }
  while (x > 0 && y > 0) { x--; y--; pairs.push([x, y]); }
  return pairs;
}
