//! Commands that call no operation of the catalogue, or whose work is not one, with the reason.

/// Commands that work without operations, and why.
pub const LOCAL: &[(&str, &str)] = &[
    ("init", "makes the pool that operations need"),
    ("serve", "is the server that answers operations"),
    ("config", "checks and prints a settings file"),
    ("check", "reads a pool that no server has open"),
    ("salvage", "reads a pool that cannot be opened"),
    ("blob", "works on an object store, without a pool"),
    ("completions", "prints a script for a shell"),
    ("keep-mounts", "holds the mounts of a server while there is none"),
    ("serve-http", "speaks HTTP for a server"),
    ("read-names", "reads names from elsewhere for a server"),
    ("restore-files", "writes restored files for a server"),
    ("man", "writes the manual pages"),
];
