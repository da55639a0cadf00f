-- TPC-C's five transactions as procedures. next_one does one of them, in the specification's mix, until its time is over.
-- One call is one transaction: MariaDB waits for the log at the end of a client's statement, and not at a commit within a procedure.
use paper;
delimiter //
create function nu(a int, x int, y int) returns int not deterministic no sql
  return mod((floor(rand() * (a + 1)) | (x + floor(rand() * (y - x + 1)))) + 7, y - x + 1) + x //
create function any_of(x int, y int) returns int not deterministic no sql
  return x + floor(rand() * (y - x + 1)) //
create function last_name(n int) returns varchar(16) deterministic no sql
  return concat(elt(n div 100 % 10 + 1, 'BAR','OUGHT','ABLE','PRI','PRES','ESE','ANTI','CALLY','ATION','EING'),
                elt(n div 10 % 10 + 1, 'BAR','OUGHT','ABLE','PRI','PRES','ESE','ANTI','CALLY','ATION','EING'),
                elt(n % 10 + 1, 'BAR','OUGHT','ABLE','PRI','PRES','ESE','ANTI','CALLY','ATION','EING')) //

create procedure new_order(ws int, items int, customers int)
begin
  declare w int default any_of(1, ws); declare d int default any_of(1, 10); declare c int default nu(1023, 1, customers); declare wanted int default any_of(5, 15);
  declare o, i, supply, quantity, left_over, line int default 0;
  declare tax, discount, price decimal(12,4); declare info char(24);
  start transaction;
  select c_discount into discount from customer where c_w_id = w and c_d_id = d and c_id = c;
  select w_tax into tax from warehouse where w_id = w;
  select d_next_o_id into o from district where d_w_id = w and d_id = d for update;
  update district set d_next_o_id = o + 1 where d_w_id = w and d_id = d;
  insert into orders values (w, d, o, c, now(), null, wanted, 1);
  insert into new_orders values (w, d, o);
  -- Items in rising order, so that two orders do not wait for each other.
  set i = any_of(1, greatest(items div 2, 1));
  while line < wanted and i <= items do
    set line = line + 1, supply = if(ws > 1 and rand() < 0.01, any_of(1, ws), w), quantity = any_of(1, 10);
    select i_price into price from item where i_id = i;
    select s_quantity, substr(s_dist, d * 24 - 23, 24) into left_over, info from stock where s_w_id = supply and s_i_id = i for update;
    update stock set s_quantity = if(left_over > quantity + 10, left_over - quantity, left_over - quantity + 91),
      s_ytd = s_ytd + quantity, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (supply <> w) where s_w_id = supply and s_i_id = i;
    insert into order_line values (w, d, o, line, i, supply, null, quantity, least(quantity * price * (1 + tax) * (1 - discount), 9999), info);
    set i = i + any_of(1, greatest(items div 16, 1));
  end while;
  commit;
end //

create procedure payment(ws int, items int, customers int)
begin
  declare w int default any_of(1, ws); declare d int default any_of(1, 10); declare cw, cd, c, many int; declare amount decimal(12,2) default any_of(100, 500000) / 100;
  declare found_name varchar(16);
  set cw = w, cd = d;
  if ws > 1 and rand() < 0.15 then set cw = any_of(1, ws), cd = any_of(1, 10); end if;
  start transaction;
  update warehouse set w_ytd = w_ytd + amount where w_id = w;
  update district set d_ytd = d_ytd + amount where d_w_id = w and d_id = d;
  if rand() < 0.6 then
    set found_name = last_name(nu(255, 0, least(999, customers - 1)));
    select count(*) div 2 into many from customer where c_w_id = cw and c_d_id = cd and c_last = found_name;
    set c = (select c_id from customer where c_w_id = cw and c_d_id = cd and c_last = found_name order by c_first limit many, 1);
  end if;
  set c = ifnull(c, nu(1023, 1, customers));
  update customer set c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1,
    c_data = if(c_credit = 'BC', left(concat_ws(' ', c, cd, cw, d, w, amount, c_data), 500), c_data) where c_w_id = cw and c_d_id = cd and c_id = c;
  insert into history values (c, cd, cw, d, w, now(), amount, 'payment');
  commit;
end //

create procedure order_status(ws int, items int, customers int)
begin
  declare w int default any_of(1, ws); declare d int default any_of(1, 10); declare c int default nu(1023, 1, customers); declare o int; declare total decimal(12,2);
  set total = (select c_balance from customer where c_w_id = w and c_d_id = d and c_id = c);
  set o = (select o_id from orders where o_w_id = w and o_d_id = d and o_c_id = c order by o_id desc limit 1);
  set total = (select sum(ol_amount) from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o);
end //

create procedure delivery(ws int, items int, customers int)
begin
  declare w int default any_of(1, ws); declare d int default 0; declare o, c int; declare total decimal(12,2);
  start transaction;
  while d < 10 do
    set d = d + 1, o = null;
    select min(no_o_id) into o from new_orders where no_w_id = w and no_d_id = d;
    if o is not null then
      delete from new_orders where no_w_id = w and no_d_id = d and no_o_id = o;
      update orders set o_carrier_id = any_of(1, 10) where o_w_id = w and o_d_id = d and o_id = o;
      set c = (select o_c_id from orders where o_w_id = w and o_d_id = d and o_id = o);
      update order_line set ol_delivery_d = now() where ol_w_id = w and ol_d_id = d and ol_o_id = o;
      set total = (select sum(ol_amount) from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o);
      update customer set c_balance = c_balance + total, c_delivery_cnt = c_delivery_cnt + 1 where c_w_id = w and c_d_id = d and c_id = c;
    end if;
  end while;
  commit;
end //

create procedure stock_level(ws int, items int, customers int)
begin
  declare w int default any_of(1, ws); declare d int default any_of(1, 10); declare low int default any_of(10, 20); declare next, found int;
  set next = (select d_next_o_id from district where d_w_id = w and d_id = d);
  set found = (select count(distinct s_i_id) from order_line join stock on s_w_id = w and s_i_id = ol_i_id
    where ol_w_id = w and ol_d_id = d and ol_o_id >= next - 20 and ol_o_id < next and s_quantity < low);
end //

create procedure next_one(ws int, items int, customers int)
begin
  if unix_timestamp(sysdate(6)) >= @until_when then
    select @done, @orders_made;
    signal sqlstate '45000' set message_text = 'time is up';
  end if;
  begin
    declare kind double default rand();
    -- A transaction that has to give way to another is taken back by the server, and not counted.
    declare continue handler for sqlexception begin rollback; set @done = @done - 1; end;
    set @done = @done + 1;
    if kind < 0.45 then call new_order(ws, items, customers); set @orders_made = @orders_made + 1;
    elseif kind < 0.88 then call payment(ws, items, customers);
    elseif kind < 0.92 then call order_status(ws, items, customers);
    elseif kind < 0.96 then call delivery(ws, items, customers);
    else call stock_level(ws, items, customers);
    end if;
  end;
end //
delimiter ;
