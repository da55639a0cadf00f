//! Reads a database from elsewhere in a process of its own, which may map little memory and has no
//! rights.
//!
//! `redb` allocates memory for a page before it asks for the page, as much as its number says: up
//! to 4 GiB. No program survives an allocation that fails, so the server does not make it. The
//! program provides the process ([`read_foreign_names_with`]); without one, as in tests, the
//! database is read in place.
//!
//! 1. The server starts the process with one end of a socket pair, and sends it a job.
//! 2. The process reads the database as any other is read (`reading`). It asks for bytes of the two
//!    files that can hold one ([`Message::Read`]), and the server answers from the space.
//! 3. The process sends each pair and fact that it finds, and a survey at the end.
//!
//! A process that ends before its survey was ended by an impossible page, or by the system. That is
//! an error in both cases: a repair must not take names for lost that another reading would find.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use surface::{Capacity, Error, ErrorKind, ObjectSpace, Run};

use crate::backend::{DatabaseFile, ROOT, SECOND};
use crate::overlay::Table;
use crate::reading::{self, Survey, Take};
use crate::source::PAGE_BYTES_MAX;
use crate::store::FACTS;

/// Longest key or value; longer ones are in no page that is read.
const PART_BYTES_MAX: usize = PAGE_BYTES_MAX;
/// Most gaps of a survey.
const GAPS_MAX: u64 = 1 << 20;
const BUFFER_BYTES: usize = 64 << 10;

/// A process that reads names.
pub struct NamesReader {
    /// Its socket.
    pub socket: UnixStream,
    /// Ends the process when dropped.
    pub process: Box<dyn Send>,
}

/// Starts a process that calls [`read_foreign_names`] with the other end of its socket.
pub type StartNamesReader = fn() -> io::Result<NamesReader>;

static START: OnceLock<StartNamesReader> = OnceLock::new();

/// Has databases from elsewhere read by processes that `start` starts, from now on.
pub fn read_foreign_names_with(start: StartNamesReader) {
    // A second call would be for the same program.
    let _ = START.set(start);
}

/// Starts processes that read names, if the program has some.
pub(crate) fn starter() -> Option<StartNamesReader> {
    START.get().copied()
}

/// Jobs of a process.
const READ_ALL: u8 = 1;
const LOCATE: u8 = 2;

/// Kinds of messages of a process.
const READ: u8 = 1;
const PAIR: u8 = 2;
const FACT: u8 = 3;
const SURVEY: u8 = 4;
const LOCATED: u8 = 5;

/// Messages of a process.
enum Message {
    /// Asks for bytes of a file: an answer follows.
    Read {
        file: u64,
        offset: u64,
        length: usize,
    },
    Pair {
        table: Table,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Fact {
        name: &'static str,
        value: u64,
    },
    /// The last one of [`READ_ALL`].
    Survey(Survey),
    /// The last one of [`LOCATE`].
    Located(Option<(DatabaseFile, Option<u64>)>),
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of the process that reads names is invalid")
}

fn read_u8(input: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    input.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn read_u64(input: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_bytes(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = usize::try_from(read_u64(input)?).ok().filter(|length| *length <= PART_BYTES_MAX);
    let mut bytes = vec![0; length.ok_or_else(invalid)?];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write_u64(output: &mut impl Write, numbers: &[u64]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| output.write_all(&number.to_le_bytes()))
}

fn write_bytes(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write_u64(output, &[bytes.len() as u64])?;
    output.write_all(bytes)
}

/// Numbers of the files in messages; 0: none.
fn number_of(place: Option<DatabaseFile>) -> u64 {
    place.map_or(0, DatabaseFile::file)
}

fn place_of(number: u64) -> io::Result<Option<DatabaseFile>> {
    match number {
        0 => Ok(None),
        ROOT => Ok(Some(DatabaseFile::First)),
        SECOND => Ok(Some(DatabaseFile::Second)),
        _ => Err(invalid()),
    }
}

impl Message {
    fn receive(input: &mut impl Read) -> io::Result<Self> {
        Ok(match read_u8(input)? {
            READ => {
                let (file, offset, length) = (read_u64(input)?, read_u64(input)?, read_u64(input)?);
                let length = usize::try_from(length).ok().filter(|length| *length <= PAGE_BYTES_MAX);
                if place_of(file)?.is_none() || offset > i64::MAX as u64 {
                    return Err(invalid());
                }
                Self::Read { file, offset, length: length.ok_or_else(invalid)? }
            }
            PAIR => {
                let table = Table::of(read_u8(input)?).ok_or_else(invalid)?;
                Self::Pair { table, key: read_bytes(input)?, value: read_bytes(input)? }
            }
            FACT => {
                let name = FACTS.get(usize::from(read_u8(input)?)).ok_or_else(invalid)?;
                Self::Fact { name, value: read_u64(input)? }
            }
            SURVEY => Self::Survey(receive_survey(input)?),
            LOCATED => {
                let (place, has_length, length) = (place_of(read_u64(input)?)?, read_u8(input)? != 0, read_u64(input)?);
                Self::Located(place.map(|place| (place, has_length.then_some(length))))
            }
            _ => return Err(invalid()),
        })
    }
}

fn receive_survey(input: &mut impl Read) -> io::Result<Survey> {
    let [pairs, gaps, gaps_of_xattrs, flags, lost, ranges] = {
        let mut numbers = [0; 6];
        for number in &mut numbers {
            *number = read_u64(input)?;
        }
        numbers
    };
    if ranges > GAPS_MAX {
        return Err(invalid());
    }
    let xattr_gaps = (0..ranges).map(|_| Ok((read_u64(input)?, read_u64(input)?))).collect::<io::Result<_>>()?;
    let is = |bit: u32| flags & (1 << bit) != 0;
    let is_lost = |(n, _): &(usize, &&str)| lost & (1 << n) != 0;
    let tables_lost = reading::TABLE_NAMES.iter().enumerate().filter(is_lost).map(|(_, name)| *name).collect();
    Ok(Survey {
        pairs,
        gaps,
        gaps_of_xattrs,
        xattr_gaps,
        tables_lost,
        has_no_head: is(0),
        has_no_header: is(1),
        contradicts_itself: is(2),
        ..Survey::default()
    })
}

fn send_survey(output: &mut impl Write, survey: &Survey) -> io::Result<()> {
    let flags = [survey.has_no_head, survey.has_no_header, survey.contradicts_itself];
    let flags = flags.into_iter().enumerate().map(|(n, is)| u64::from(is) << n).sum();
    let is_lost = |name: &&str| survey.tables_lost.contains(name);
    let lost = reading::TABLE_NAMES.iter().enumerate().map(|(n, name)| u64::from(is_lost(name)) << n).sum();
    output.write_all(&[SURVEY])?;
    let ranges = survey.xattr_gaps.len() as u64;
    write_u64(output, &[survey.pairs, survey.gaps, survey.gaps_of_xattrs, flags, lost, ranges])?;
    survey.xattr_gaps.iter().try_for_each(|(first, last)| write_u64(output, &[*first, *last]))
}

/// Why a reading ended early.
enum Ended<E> {
    /// The process has ended, or has sent an impossible message.
    Process(io::Error),
    Taker(E),
}

/// Starts a process for a job, and serves it until its last message, which this returns. All pairs
/// and facts go to `take`.
fn serve<T: Take>(
    start: StartNamesReader,
    job: u8,
    space: &dyn ObjectSpace,
    take: &mut T,
) -> Result<Message, Ended<T::Error>> {
    let NamesReader { process: _process, socket } = start().map_err(Ended::Process)?;
    let mut input = BufReader::with_capacity(BUFFER_BYTES, &socket);
    (&socket).write_all(&[job]).map_err(Ended::Process)?;
    let mut answer = Vec::new();
    loop {
        match Message::receive(&mut input).map_err(Ended::Process)? {
            Message::Read { file, offset, length } => {
                answer.clear();
                answer.resize(1 + length, 0);
                if space.read(file, offset, &mut answer[1..]).is_ok() {
                    answer[0] = 1;
                } else {
                    answer.truncate(1);
                }
                (&socket).write_all(&answer).map_err(Ended::Process)?;
            }
            Message::Pair { table, key, value } => take.pair(table, &key, &value).map_err(Ended::Taker)?,
            Message::Fact { name, value } => take.fact(name, value),
            last => return Ok(last),
        }
    }
}

fn report(error: &io::Error) {
    log::error!(
        "the process that reads the names of a share from elsewhere has ended early ({error}): pages that are longer \
         than memory allows end it"
    );
}

/// Reads the database of a space in a process, and gives its pairs to `take`.
///
/// # Errors
/// Those of `take`.
pub(crate) fn read<T: Take>(
    start: StartNamesReader,
    space: &Arc<dyn ObjectSpace>,
    take: &mut T,
) -> Result<Survey, T::Error> {
    match serve(start, READ_ALL, &**space, take) {
        Ok(Message::Survey(survey)) => Ok(survey),
        Ok(_) => Ok(Survey { was_ended: true, ..Survey::default() }),
        Err(Ended::Process(error)) => {
            report(&error);
            Ok(Survey { was_ended: true, ..Survey::default() })
        }
        Err(Ended::Taker(error)) => Err(error),
    }
}

/// Locates the database of a space, as [`reading::located`] does.
pub(crate) fn locate(start: StartNamesReader, space: &dyn ObjectSpace) -> Option<(DatabaseFile, Option<u64>)> {
    struct Nothing;
    impl Take for Nothing {
        type Error = io::Error;
        fn pair(&mut self, _: Table, _: &[u8], _: &[u8]) -> io::Result<()> {
            Err(invalid())
        }
        fn fact(&mut self, _: &str, _: u64) {}
    }
    match serve(start, LOCATE, space, &mut Nothing) {
        Ok(Message::Located(found)) => found,
        Ok(_) => None,
        Err(Ended::Process(error) | Ended::Taker(error)) => {
            report(&error);
            None
        }
    }
}

/// The server's end, as the process sees it.
struct Server {
    output: BufWriter<UnixStream>,
    input: BufReader<UnixStream>,
}

impl Server {
    fn read(&mut self, file: u64, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        self.output.write_all(&[READ])?;
        write_u64(&mut self.output, &[file, offset, buf.len() as u64])?;
        self.output.flush()?;
        let is_read = read_u8(&mut self.input)? != 0;
        if is_read {
            self.input.read_exact(buf)?;
        }
        Ok(is_read)
    }
}

/// The space, as the process sees it: it can only be read.
struct Remote(Arc<Mutex<Server>>);

fn read_only<T>() -> surface::Result<T> {
    Err(Error::new(ErrorKind::ReadOnly, "names from elsewhere are only read"))
}

impl ObjectSpace for Remote {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> surface::Result<()> {
        match self.0.lock().read(file, offset, buf) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(ErrorKind::Io, "the server cannot read this page")),
            Err(error) => Err(Error::from_io("the server has ended", error)),
        }
    }

    fn write(&self, _: u64, _: u64, _: Bytes) -> surface::Result<()> {
        read_only()
    }

    fn discard(&self, _: u64, _: Range<u64>) -> surface::Result<()> {
        read_only()
    }

    fn discard_files(&self, _: Range<u64>) -> surface::Result<()> {
        read_only()
    }

    fn finish_discards(&self) -> surface::Result<()> {
        read_only()
    }

    fn flush(&self) -> surface::Result<()> {
        read_only()
    }

    fn allocation(&self, _: u64, _: u64, _: u64, _: usize) -> surface::Result<Vec<Run>> {
        read_only()
    }

    fn capacity(&self) -> surface::Result<Capacity> {
        read_only()
    }

    fn admit(&self, _: u64) -> surface::Result<()> {
        read_only()
    }

    fn set_aside(&self, _: u64) -> surface::Result<()> {
        read_only()
    }

    fn own_room(&self) -> u64 {
        0
    }
}

/// Sends what is found.
struct Sender(Arc<Mutex<Server>>);

impl Take for Sender {
    type Error = io::Error;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> io::Result<()> {
        let output = &mut self.0.lock().output;
        output.write_all(&[PAIR, table as u8])?;
        write_bytes(output, key)?;
        write_bytes(output, value)
    }

    fn fact(&mut self, name: &str, value: u64) {
        let Some(number) = FACTS.iter().position(|fact| *fact == name) else { return };
        let output = &mut self.0.lock().output;
        // An error comes again with the survey.
        let _ = output.write_all(&[FACT, number as u8]).and_then(|()| write_u64(output, &[value]));
    }
}

/// Reads a database for a server: all that the process does. Its memory must be limited before.
///
/// # Errors
/// When the server has ended.
pub fn read_foreign_names(socket: UnixStream) -> io::Result<()> {
    let input = BufReader::with_capacity(BUFFER_BYTES, socket.try_clone()?);
    let mut server = Server { output: BufWriter::with_capacity(BUFFER_BYTES, socket), input };
    let job = read_u8(&mut server.input)?;
    let server = Arc::new(Mutex::new(server));
    let space: Arc<dyn ObjectSpace> = Arc::new(Remote(server.clone()));
    match job {
        READ_ALL => {
            let survey = reading::read_here(&space, &mut Sender(server.clone()))?;
            send_survey(&mut server.lock().output, &survey)?;
        }
        LOCATE => {
            let found = reading::located_here(&space);
            let length = found.and_then(|(_, length)| length);
            let output = &mut server.lock().output;
            output.write_all(&[LOCATED])?;
            write_u64(output, &[number_of(found.map(|(place, _)| place))])?;
            output.write_all(&[u8::from(length.is_some())])?;
            write_u64(output, &[length.unwrap_or(0)])?;
        }
        _ => return Err(invalid()),
    }
    server.lock().output.flush()
}

#[cfg(test)]
#[path = "isolated_tests.rs"]
mod tests;
