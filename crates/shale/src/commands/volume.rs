//! `shale create` and `resize`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fe_fuse::Stack;
use serde_json::json;
use surface::{Error, ErrorKind};
use units::format_size;

use super::forced;
use super::list::{folders, volumes};
use super::rounding::report_rounding;
use super::status::status;
use crate::cli::{CreateArgs, ResizeArgs};
use crate::output::Output;
use operations::names::round_up_to_block;
use operations::{Created, Request};
use operations::{Failure, Outcome};
use server::session::Session;

/// Creates a volume, a share or a folder.
pub fn create(args: CreateArgs, output: &Output) -> Outcome {
    let CreateArgs { pool, volume: name, size, share, folder, parents, quota, properties, access } = args;
    let mut properties: BTreeMap<_, _> = properties.into_iter().collect();
    properties.extend(quota.map(|quota| ("quota".to_owned(), quota)));
    let wants_properties = !properties.is_empty();
    if size.is_none() && !share && !folder {
        let text = format!("specify what '{name}' is: --size SIZE for a volume, --share, or --folder");
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let size_bytes = round_up_to_block(size.unwrap_or(0))?;
    report_rounding(output, size.unwrap_or(0), size_bytes);
    let request = match (share, folder) {
        (_, true) => Request::CreateFolder { folder: name.clone(), properties, parents },
        (true, _) => Request::CreateShare { share: name.clone(), properties, parents },
        _ => Request::Create { volume: name.clone(), size_bytes, properties, parents },
    };
    let was_there = Session::with(&pool, &access, |session| {
        match session.created(request) {
            // Like mkdir -p.
            Err(error) if error.kind() == ErrorKind::Exists && folder && parents => {
                if !is_folder(session, &name)? {
                    Err(error.into())
                } else if wants_properties {
                    let way = format!(", and keeps its properties: change them with shale set POOL {name} KEY=VALUE");
                    Err(Failure::from(error).with(&way))
                } else {
                    Ok(true)
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound && name.contains('/') && !parents => {
                Err(Failure::from(error).with(", or use -p, which creates missing folders"))
            }
            created => {
                noted(created?, output);
                Ok(false)
            }
        }
    })?;
    match (share, folder) {
        _ if was_there => output.done(&json!({ "folder": name }), || format!("folder {name} already exists\n")),
        (_, true) => output.done(&json!({ "folder": name }), || format!("folder {name} created\n")),
        (true, _) => output.done(&json!({ "share": name }), || format!("share {name} created\n")),
        _ => say_size(output, "created", &name, size_bytes),
    }
    Ok(())
}

/// Shows the notes on a new object, and returns its number.
pub fn noted(created: Created, output: &Output) -> u64 {
    created.notes.iter().for_each(|note| output.note(&format!("shale: {note}")));
    created.id
}

/// Returns whether a name belongs to a folder.
pub fn is_folder(session: &Session, name: &str) -> Outcome<bool> {
    Ok(folders(session)?.iter().any(|folder| folder.name == name))
}

/// Returns the kind of an object for messages: a folder, a share or a volume.
pub fn kind_of(session: &Session, name: &str) -> Outcome<&'static str> {
    if is_folder(session, name)? {
        return Ok("folder");
    }
    let is_share = volumes(session)?.iter().any(|volume| volume.name == name && volume.share);
    Ok(if is_share { "share" } else { "volume" })
}

/// Creates the missing folders of a name.
pub fn make_folders_of(session: &Session, name: &str) -> Outcome {
    let Some((folder, _)) = name.rsplit_once('/') else { return Ok(()) };
    let request = Request::CreateFolder { folder: folder.to_owned(), properties: BTreeMap::new(), parents: true };
    match session.created(request) {
        // If it is not a folder, the creation in it fails with that error.
        Err(error) if error.kind() == ErrorKind::Exists => Ok(()),
        created => {
            created?;
            Ok(())
        }
    }
}

/// Resizes a volume.
pub fn resize(args: ResizeArgs, output: &Output) -> Outcome {
    let size_bytes = args.size;
    let request = Request::Resize {
        object: args.volume.clone().into(),
        size_bytes,
        shrink: args.shrink,
        force: args.force,
        if_match: None,
    };
    let stale = Session::with(&args.pool, &args.access, |session| {
        let before = volumes(session)?.into_iter().find(|volume| volume.name == args.volume);
        // Without --shrink it is refused if it would cut data off.
        if args.force && args.shrink {
            forced::tell(session, &request, output)?;
        }
        session.done(request)?;
        let has_grown = before.is_some_and(|before| before.size_bytes < size_bytes);
        let mount = status(session)?.mount;
        let above = mount.map(|mount| Stack::above(&Path::new(&mount).join(&args.volume)));
        Ok(above.map(|above| commands_of_kernel(&above, &read_mounts(), has_grown)).unwrap_or_default())
    })?;
    say_size(output, "resized", &args.volume, size_bytes);
    if !stale.is_empty() {
        let lines: Vec<_> = stale.iter().map(|command| format!("  {command}")).collect();
        output.note(&format!("the kernel's loop device still has the old size; next:\n{}", lines.join("\n")));
    }
    Ok(())
}

/// Returns the mounts of this machine, as the kernel lists them.
fn read_mounts() -> String {
    std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()
}

/// Returns the commands that give the volume's size to its loop devices, and to the file systems on
/// them if it has grown.
fn commands_of_kernel(above: &Stack, mounts: &str, has_grown: bool) -> Vec<String> {
    let is_loop = |device: &&PathBuf| {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("loop").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let loops: Vec<_> = above.devices.iter().filter(is_loop).collect();
    let mut commands: Vec<_> = loops.iter().map(|device| format!("losetup -c {}", device.display())).collect();
    if !has_grown {
        return commands;
    }
    for device in &loops {
        let source = device.display().to_string();
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            (words.next() == Some(&source))
                .then(|| (words.next().unwrap_or_default(), words.next().unwrap_or_default()))
        });
        match mounted {
            Some((dir, "xfs")) => commands.push(format!("xfs_growfs {dir}")),
            Some((dir, "btrfs")) => commands.push(format!("btrfs filesystem resize max {dir}")),
            Some((_, kind)) if !kind.starts_with("ext") => {}
            // A partition on it must grow first.
            None if above.devices.len() > loops.len() => {}
            _ => commands.push(format!("resize2fs {source}")),
        }
    }
    commands
}

fn say_size(output: &Output, what: &str, volume: &str, size_bytes: u64) {
    let document = json!({ "volume": volume, "size_bytes": size_bytes });
    output.done(&document, || format!("volume {volume} {what}: {}\n", exact_size(size_bytes)));
}

/// Formats a size for people, with the bytes where that is rounded.
fn exact_size(size_bytes: u64) -> String {
    match format_size(size_bytes) {
        text if text.contains('.') => format!("{text} ({size_bytes} bytes)"),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_the_new_size_and_then_the_file_system() {
        let stack =
            |devices: &[&str]| Stack { devices: devices.iter().map(PathBuf::from).collect(), mounts: Vec::new() };
        let (one, mounts) = (stack(&["/dev/loop3"]), |kind: &str| {
            format!("/dev/loop30 /b ext4 rw 0 0\n/dev/loop3 /mnt/vm {kind} rw 0 0\n")
        });
        assert_eq!(commands_of_kernel(&one, &mounts("ext4"), true), ["losetup -c /dev/loop3", "resize2fs /dev/loop3"]);
        assert_eq!(commands_of_kernel(&one, "", true), ["losetup -c /dev/loop3", "resize2fs /dev/loop3"]);
        assert_eq!(commands_of_kernel(&one, &mounts("xfs"), true)[1], "xfs_growfs /mnt/vm");
        assert_eq!(commands_of_kernel(&one, &mounts("btrfs"), true)[1], "btrfs filesystem resize max /mnt/vm");
        assert_eq!(commands_of_kernel(&one, &mounts("ext4"), false), ["losetup -c /dev/loop3"]);
        let parted = stack(&["/dev/loop3", "/dev/loop3p1"]);
        assert_eq!(commands_of_kernel(&parted, "", true), ["losetup -c /dev/loop3"]);
        assert_eq!(commands_of_kernel(&stack(&[]), "", true), [""; 0]);
    }
}
