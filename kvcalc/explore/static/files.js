// A folder of texts that Python reads, each found and encoded only when it is opened: writing all of them would take a tenth of a second.

const FOLDER = 0o40555, FILE = 0o100444;
const NO_SUCH_FILE = 44, READ_ONLY = 69; // as WASI numbers errors

// Names with slashes to texts, as a tree of maps.
function tree(files) {
  const root = new Map();
  for (const [path, text] of Object.entries(files)) {
    const names = path.split("/");
    const name = names.pop();
    let folder = root;
    for (const each of names) {
      if (!folder.has(each)) folder.set(each, new Map());
      folder = folder.get(each);
    }
    folder.set(name, text);
  }
  return root;
}

export function mountTexts(FS, files, place) {
  const encoder = new TextEncoder();
  const bytes = (node) => (node.bytes ??= encoder.encode(node.held));
  const refuse = () => { throw new FS.ErrnoError(READ_ONLY); };
  const size = (node) => (node.held instanceof Map ? 4096 : bytes(node).length);
  const llseek = ({ position, node }, offset, whence) => offset + [0, position, size(node)][whence];
  const read = ({ node }, buffer, offset, length, position) => {
    const piece = bytes(node).subarray(position, position + length);
    buffer.set(piece, offset);
    return piece.length;
  };
  const made = (parent, name, held) => {
    const isFolder = held instanceof Map;
    const node = FS.createNode(parent, name, isFolder ? FOLDER : FILE, 0);
    return Object.assign(node, { held, node_ops: nodeOps, stream_ops: isFolder ? { llseek } : { llseek, read, write: refuse } });
  };
  const nodeOps = {
    getattr(node) {
      const never = new Date(0);
      return { dev: 1, ino: node.id, mode: node.mode, nlink: 1, uid: 0, gid: 0, rdev: 0, size: size(node), atime: never, mtime: never, ctime: never,
        blksize: 4096, blocks: Math.ceil(size(node) / 4096) };
    },
    lookup(parent, name) {
      if (!parent.held.has(name)) throw new FS.ErrnoError(NO_SUCH_FILE);
      return made(parent, name, parent.held.get(name));
    },
    readdir: (node) => [".", "..", ...node.held.keys()],
    setattr: refuse, mknod: refuse, rename: refuse, unlink: refuse, rmdir: refuse, symlink: refuse,
  };
  FS.mkdirTree(place);
  FS.mount({ mount: () => made(null, "/", tree(files)) }, {}, place);
}
