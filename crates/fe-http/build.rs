//! Writes the table of the page's files, out of whatever `assets/` has: the page is built apart, and
//! its files are committed.
#![allow(clippy::disallowed_methods, reason = "it runs when the program is built")]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("assets");
    let mut files = Vec::new();
    if root.is_dir() {
        walk(&root, &mut files)?;
    }
    files.sort();
    let mut table = String::from("static ASSETS: &[(&str, &[u8])] = &[\n");
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).display().to_string();
        table += &format!("    ({:?}, include_bytes!({:?})),\n", format!("/{name}"), file.display().to_string());
    }
    table += "];\n";
    println!("cargo::rerun-if-changed=build.rs");
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("assets.rs"), table)
}
